"""Default of credit card clients in Taiwan (Yeh and Lien, 2009): 23 numbers about 30,000 clients."""

from __future__ import annotations

from thinwire.data.finding import Source
from thinwire.data.sets.tabular import TabularSet
from thinwire.data.splits import ColumnsByName

__all__ = ["CREDIT_CARD"]

PERSON = (
    *("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"),
    *("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"),
)
BILLS = (*(f"BILL_AMT{k}" for k in range(1, 7)), *(f"PAY_AMT{k}" for k in range(1, 7)))

CREDIT_CARD = TabularSet(
    name="credit_card",
    source=Source(
        "Default of credit card clients",
        "https://archive.ics.uci.edu/dataset/350/default+of+credit+card+clients",
        ("credit_card/UCI_Credit_Card.csv",),
        "the publisher offers a spreadsheet, which has to be saved as CSV with the line of column names first",
    ),
    places=(
        "credit_card/UCI_Credit_Card.csv",
        "credit_card/credit_card.csv",
        "credit_card/credit_card.parquet",
        "tabular/uci_credit_card.parquet",
    ),
    fields=(*PERSON, *BILLS),
    words=(),
    indicators=(),
    label=("default.payment.next.month", "default payment next month"),
    classes=("0", "1"),
    default_split=ColumnsByName((("person", PERSON), ("bills", BILLS))),
)
