"""Tables: Parquet, Arrow, and Hugging Face's datasets."""
