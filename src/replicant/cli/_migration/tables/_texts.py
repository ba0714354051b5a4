"""What to write instead of ``tf.strings``. An element of a dataset of texts is a ``str``, and a batch is a NumPy array of them."""

_MANY = "a batch of texts"

ADVICE = {
    "strings": "methods of str for one text in dataset.map, np.char or np.vectorize for a batch: strings stay on the host",
    "strings.as_string": "str(x), or np.asarray(x).astype(str) for a batch",
    "strings.bytes_split": "list(text)",
    "strings.format": 'an f-string; in traced code, jax.debug.print("{}", x)',
    "strings.join": "separator.join([a, b]), or np.char.add(a, b) for batches",
    "strings.length": f"len(text), or np.char.str_len for {_MANY}; TensorFlow counts bytes, Python characters",
    "strings.lower": f"text.lower(), or np.char.lower(texts) for {_MANY}",
    "strings.ngrams": "replicant.keras.layers.TextVectorization(ngrams=...)",
    "strings.reduce_join": "separator.join(texts)",
    "strings.regex_full_match": "re.fullmatch(pattern, text) is not None",
    "strings.regex_replace": f"re.sub(pattern, new, text), or np.vectorize(lambda text: re.sub(...)) for {_MANY}",
    "strings.split": "text.split(separator), in dataset.map; lists of unequal lengths need padded_batch",
    "strings.strip": f"text.strip(), or np.char.strip(texts) for {_MANY}",
    "strings.substr": "text[start : start + length]",
    "strings.to_hash_bucket": "zlib.crc32(text.encode()) % num_bins, or the layer Hashing; both give other numbers",
    "strings.to_hash_bucket_fast": "replicant.keras.layers.Hashing(num_bins)",
    "strings.to_hash_bucket_strong": "replicant.keras.layers.Hashing(num_bins, salt=key)",
    "strings.to_number": f'float(text) or int(text), or np.asarray(texts).astype("float32") for {_MANY}',
    "strings.unicode_decode": "[ord(c) for c in text]",
    "strings.unicode_encode": '"".join(map(chr, numbers))',
    "strings.unicode_split": "list(text)",
    "strings.unsorted_segment_join": "a dict of lists and separator.join, in Python",
    "strings.upper": f"text.upper(), or np.char.upper(texts) for {_MANY}",
}
