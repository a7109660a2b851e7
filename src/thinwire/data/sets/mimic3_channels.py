"""The measurements of the MIMIC-III benchmark (Harutyunyan et al., 2019), and the words that some are given in."""

from __future__ import annotations

from itertools import accumulate

__all__ = ["CHANNELS", "COLUMNS", "NORMAL", "WORDS", "first_columns"]

# What stands where nothing was measured yet.
NORMAL = {
    "Capillary refill rate": "0.0",
    "Diastolic blood pressure": "59.0",
    "Fraction inspired oxygen": "0.21",
    "Glascow coma scale eye opening": "4 Spontaneously",
    "Glascow coma scale motor response": "6 Obeys Commands",
    "Glascow coma scale total": "15",
    "Glascow coma scale verbal response": "5 Oriented",
    "Glucose": "128.0",
    "Heart Rate": "86",
    "Height": "170.0",
    "Mean blood pressure": "77.0",
    "Oxygen saturation": "98.0",
    "Respiratory rate": "19",
    "Systolic blood pressure": "118.0",
    "Temperature": "36.6",
    "Weight": "81.0",
    "pH": "7.4",
}
CHANNELS = tuple(NORMAL)

# Two charting systems wrote the same findings differently; the benchmark keeps both spellings.
WORDS = {
    "Capillary refill rate": ("0.0", "1.0"),
    "Glascow coma scale eye opening": (
        *("To Pain", "3 To speech", "1 No Response", "4 Spontaneously", "None", "To Speech", "Spontaneously"),
        "2 To pain",
    ),
    "Glascow coma scale motor response": (
        *("1 No Response", "3 Abnorm flexion", "Abnormal extension", "No response", "4 Flex-withdraws"),
        *("Localizes Pain", "Flex-withdraws", "Obeys Commands", "Abnormal Flexion", "6 Obeys Commands"),
        *("5 Localizes Pain", "2 Abnorm extensn"),
    ),
    "Glascow coma scale total": ("11", "10", "13", "12", "15", "14", "3", "5", "4", "7", "6", "9", "8"),
    "Glascow coma scale verbal response": (
        *("1 No Response", "No Response", "Confused", "Inappropriate Words", "Oriented", "No Response-ETT"),
        *(
            "5 Oriented",
            "Incomprehensible sounds",
            "1.0 ET/Trach",
            "4 Confused",
            "2 Incomp sounds",
            "3 Inapprop words",
        ),
    ),
}


def first_columns() -> tuple[int, ...]:
    """Where each measurement's columns start, and after the last one, where the masks do."""
    return (0, *accumulate(len(WORDS.get(name, "1")) for name in CHANNELS))


COLUMNS = (
    *(f"{name} = {word}" if word else name for name in CHANNELS for word in WORDS.get(name, ("",))),
    *(f"{name} measured" for name in CHANNELS),
)
