"""Every plan that any test makes is verified."""

import os

os.environ["WEFT_VERIFY"] = "1"
