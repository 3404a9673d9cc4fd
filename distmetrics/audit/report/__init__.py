"""The forms in which an audit is reported: a terminal table, JSON, JUnit and one page of HTML."""
