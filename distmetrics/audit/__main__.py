"""`python -m distmetrics.audit` is `distmetrics audit`."""

from distmetrics.audit.commands import audit

audit(prog_name="distmetrics audit")
