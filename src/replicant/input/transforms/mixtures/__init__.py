"""Elements of several datasets: in turn, one after the other, or drawn with weights."""
