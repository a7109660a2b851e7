"""Bank marketing (Moro et al., 2014), the additional full version: did a client subscribe to a deposit?"""

from __future__ import annotations

from thinwire.data.blocks import TextStyle
from thinwire.data.finding import Source
from thinwire.data.sets.tabular import TabularSet
from thinwire.data.splits import ColumnsByName

__all__ = ["BANK_MARKETING"]

CLIENT = ("age", "job", "marital", "education", "default", "housing", "loan")
CAMPAIGN = (
    *("contact", "month", "day_of_week", "campaign", "pdays", "previous", "poutcome"),
    *("emp.var.rate", "cons.price.idx", "cons.conf.idx", "euribor3m", "nr.employed"),
)

BANK_MARKETING = TabularSet(
    name="bank_marketing",
    source=Source(
        "Bank marketing",
        "https://archive.ics.uci.edu/dataset/222/bank+marketing",
        ("bank_marketing/bank-additional-full.csv",),
        "the publisher offers it inside an archive on its page",
    ),
    places=(
        "bank_marketing/bank-additional-full.csv",
        "bank-additional/bank-additional-full.csv",
        "bank_marketing/bank_marketing.parquet",
        "tabular/bank_additional_full.parquet",
    ),
    fields=(*CLIENT, *CAMPAIGN),
    words=(
        *("job", "marital", "education", "default", "housing", "loan"),
        *("contact", "month", "day_of_week", "poutcome"),
    ),
    indicators=(),
    label=("y",),
    classes=("no", "yes"),
    default_split=ColumnsByName((("client", CLIENT), ("campaign", CAMPAIGN))),
    style=TextStyle(delimiter=";"),
    note=", duration left out since it is known only after the call",
)
