"""How a job is and was, for people: text, pages and a status page."""
