import json

import pytest

from engine.data.bpe import train_bpe
from engine.data.tokenizer import END_OF_TEXT, JsonTokenizer
from engine.errors import RecipeError

CORPUS = ["low lower lowest\n" * 50, "new newer newest wider\n" * 30]


def test_training_twice_gives_the_same_file():
    assert train_bpe(CORPUS, vocab=300) == train_bpe(iter(CORPUS), vocab=300)


def test_the_vocabulary_has_all_bytes_the_end_and_the_asked_size():
    content = json.loads(train_bpe(CORPUS, vocab=265))
    vocabulary = content["model"]["vocab"]
    assert len(vocabulary) == 265
    assert vocabulary[END_OF_TEXT] == 0
    assert sum(len(token) == 1 for token in vocabulary) == 256


def test_the_first_merge_is_the_most_frequent_pair():
    first = json.loads(train_bpe(["abababab xyab"] * 9, vocab=258))["model"]["merges"][0]
    assert "".join(first) == "ab"


def test_frequent_words_become_one_token():
    tokens = JsonTokenizer(train_bpe(CORPUS, vocab=300), name="bpe")
    assert len(tokens.encode_batch([" lowest"])[0]) == 1


def test_little_text_gives_a_smaller_vocabulary():
    assert JsonTokenizer(train_bpe(["aa"], vocab=4096), name="bpe").vocab <= 258


def test_no_text_is_an_error():
    with pytest.raises(RecipeError, match="no text to train on"):
        train_bpe([], vocab=300)
