"""The cases that come out differently, each with the row of docs/differences.md that says why, and what Replicant gives instead."""

from typing import Any

_BY_ROW: dict[str, dict[str, dict[str, Any]]] = {
    "saved datasets have a format of their own": {
        "saved(D.range(3), compression='ZLIB')": {"error": "save: compression must be None or \"GZIP\". Received: 'ZLIB'."},
        "saved(D.range(3), compression='SNAPPY')": {"error": "save: compression must be None or \"GZIP\". Received: 'SNAPPY'"},
        "saved(D.range(3), compression='zip')": {"error": "save: compression must be None or \"GZIP\". Received: 'zip'."},
        "srt(saved(D.range(3), shard_func=lambda x: x - 1))": {
            "error": "save: <lambda> must return a whole number of at least 0 per"
        },
        "saved(D.range(5), load=dict(compression='zip'))": {
            "error": "load: compression must be None or \"GZIP\". Received: 'zip'."
        },
        "snap(D.range(3), compression='GZIP')": {"error": "snapshot: compression must be None or 'AUTO'. Received: 'GZI"},
        "snap(D.range(3), compression='SNAPPY')": {"error": "snapshot: compression must be None or 'AUTO'. Received: 'SNA"},
        "snap(D.range(3), compression='zip')": {"error": "snapshot: compression must be None or 'AUTO'. Received: 'zip"},
        "srt(snap(D.range(6), shard_func=lambda x: x % 2))": {
            "error": "snapshot: reader_func and shard_func cannot be used: a snaps"
        },
        "srt(snap(D.range(6), shard_func=lambda x: i64(0)))": {
            "error": "snapshot: reader_func and shard_func cannot be used: a snaps"
        },
        "snap(D.range(6), shard_func=lambda x: i64(0))": {"error": "snapshot: reader_func and shard_func cannot be used: a snaps"},
        "snap(D.range(6), reader_func=lambda files: files.flat_map(lambda file: file))": {
            "error": "snapshot: reader_func and shard_func cannot be used: a snaps"
        },
        "snap(D.range(6), reader_func=lambda files: files.flat_map(lambda file: file).take(2))": {
            "error": "snapshot: reader_func and shard_func cannot be used: a snaps"
        },
    },
    "numbers beyond the dtype are errors": {
        "Csv(text('1e400\\n'), [0.0])": {"error": "CsvDataset: field 0 is '1e400', which is beyond float32."},
    },
    "what TensorFlow refuses may work": {
        "srt(saved(D.range(5), shard_func=lambda x: 0))": {"value": [0, 1, 2, 3, 4]},
        "srt(saved(D.range(5), shard_func=lambda x: cast(x, 'int32')))": {"value": [0, 1, 2, 3, 4]},
        "Csv(D.from_tensor_slices([text('1,2\\n'), text('5,6\\n')]), [0, 0])": {"elements": [[1, 2], [5, 6]]},
        "D.from_tensor_slices([True, 2])": {"elements": [1, 2]},
        "D.range(1, 5).map(lambda n: fill(n)).padded_batch(2, padding_values=-1)": {
            "elements": [[[1, -1], [2, 2]], [[3, 3, 3, -1], [4, 4, 4, 4]]]
        },
        "D.range(3).scan(None, lambda s, x: (s, x))": {"elements": [0, 1, 2]},
        "D.range(3).reduce(None, lambda s, x: s)": {"value": None},
        "D.range(3).reduce((), lambda s, x: ())": {"value": []},
        "D.from_tensor_slices([0.5, 1.5, 0.5]).unique()": {"elements": [0.5, 1.5]},
        "D.zip((D.range(2), D.range(2))).unique()": {"elements": [[0, 0], [1, 1]]},
        "D.from_tensor_slices([True, False, True]).unique()": {"elements": [True, False]},
        "D.from_tensor_slices(np.array([1, 1], np.uint8)).unique()": {"elements": [1]},
        "srt(D.sample_from_datasets([D.range(3), D.range(5, 7)], weights=[1, 3], seed=2))": {"value": [0, 1, 2, 5, 6]},
    },
    "arguments without a meaning are errors": {
        "saved(D.range(5), load=dict(element_spec=(Spec((), 'int64'),)))": {
            "error": "load: element_spec has the structure (*,), but the elements"
        },
        "Csv([], [0, 0])": {"error": "CsvDataset: there is no file name in []."},
        "make_csv(text('a\\n1\\n2.5\\n'), 2, num_rows_for_inference=-1, num_epochs=1, shuffle=False)": {
            "error": "make_csv_dataset: num_rows_for_inference must be at least 0."
        },
        "Fixed(text('aabb'), 2, compression_type='GZIP')": {"error": "FixedLengthRecordDataset:"},
        "Fixed([], 2)": {"error": "FixedLengthRecordDataset: there is no file name in []."},
        "D.from_tensor_slices([[], [1]])": {"error": "the element is not a tensor: its lists have unequal lengths."},
        "D.range(3).scan({'a': i64(0)}, lambda s, x: ({'b': s['a'] + x}, s['a']))": {
            "error": "scan: the new state has the structure {'b': *}, but the init"
        },
        "D.range(3).reduce({'a': i64(0)}, lambda s, x: {'b': s['a']})": {
            "error": "reduce: the new state has the structure {'b': *}, but the in"
        },
        "D.sample_from_datasets([D.range(2), D.range(2)], weights=[-1.0, 2.0], seed=1)": {
            "error": "sample_from_datasets: weights must be at least 0. Received:"
        },
        "D.range(6).rejection_resample(lambda x: cast(x % 2, 'int32'), [0.5, 0.5], [1.0])": {
            "error": "rejection_resample: initial_dist and target_dist need one fr"
        },
        "Lines([])": {"error": "TextLineDataset: there is no file name in []."},
        "Records(records('a'), 'zip')": {"error": 'TFRecordDataset: compression_type must be None, "", "GZIP" o'},
        "Records(records('a'), buffer_size=-1)": {"error": "TFRecordDataset: buffer_size must be at least 0. Received: -"},
        "Records(text('no record'))": {"error": "TFRecordDataset:"},
        "Records([])": {"error": "TFRecordDataset: there is no file name in []."},
        "D.range(5, foo=1)": {"error": "Dataset.range() got an unexpected keyword argument 'foo'"},
        "D.range(5).repeat(-3)": {"error": "repeat: count must be at least -1. Received: -3."},
        "D.range(5).take(-3)": {"error": "take: count must be at least -1. Received: -3."},
        "D.range(5).skip(-3)": {"error": "skip: count must be at least -1. Received: -3."},
        "D.range(6).batch(2).rebatch(0)": {"error": "rebatch: batch_size must be at least 1. Received: 0."},
    },
    "a number in record_defaults is a default": {
        "Csv(text('1,,a\\n,4.5,\\n'), [7, 0.5, 'none'])": {"elements": [[1, 0.5, "a"], [7, 4.5, "none"]]},
        "Csv(text('NA,1\\n2,NA\\n'), [0, 9], na_value='NA')": {"elements": [[0, 1], [2, 9]]},
        "Csv(text('1,2\\n'), [True, 0])": {"error": "CsvDataset: each of record_defaults must be a dtype (int32,"},
        "Csv(text('1\\n\\n2\\n'), [7])": {"elements": [[1], [7], [2]]},
        "Csv(text('\\n1\\n'), [np.array([7], np.int64)])": {"elements": [[7], [1]]},
        "make_csv(text('a,b,c\\n1,0.5,x\\n2,1.5,y\\n3,,z\\n'), 3, column_defaults=[0.0, 9.0, 'd'], num_epochs=1, shuffle=False)": {
            "elements": [{"a": [1.0, 2.0, 3.0], "b": [0.5, 1.5, 9.0], "c": ["x", "y", "z"]}]
        },
    },
    "carriage returns inside of a line stay": {
        "Lines(text('a\\rb\\n'))": {"elements": ["a\rb"]},
    },
    "fingerprints are Replicant's own": {
        "same(D.range(3).shuffle(3, seed=1), D.range(3).shuffle(3, seed=2))": {"value": False},
    },
}
DIFFERENT = {call: (row, ours) for row, cases in _BY_ROW.items() for call, ours in cases.items()}
