"""Stores behind fsspec where they differ: no conditional put, foreign errors, S3's uploads."""

import uuid
from datetime import UTC, datetime

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from engine.ckpt import url_store
from engine.ckpt.store import Upload
from engine.ckpt.url_store import UrlStore
from engine.errors import CheckpointError, MissingError


@pytest.fixture
def store():
    return UrlStore(f"memory://{uuid.uuid4().hex}/run/")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(url_store, "SETTLE_S", 0.0)


def use(store, **methods):
    """The store's file system with other methods."""
    store._fs = type("Other", (MemoryFileSystem,), {"cachable": False, **methods})()
    store._is_s3 = "call_s3" in methods


def test_images_go_in_blocks(store, monkeypatch):
    monkeypatch.setattr(url_store, "BLOCK", 4)
    passed = []
    store.put_image("s/i", memoryview(b"0123456789xx"), 10, lambda view: passed.append(bytes(view)))
    assert passed == [b"0123", b"4567", b"89"]
    assert store.get("s/i", 99) == b"0123456789"


def test_files_below_a_folder_are_not_files_of_it(store):
    store.put("s/f", [memoryview(b"x")])
    fsspec.filesystem("memory").pipe_file(f"{store._root}/s/deep/g", b"y")
    assert [f.name for f in store.files("s")] == ["f"]
    assert store.folders() == ["s"]


def test_without_a_conditional_put_it_looks_before_it_writes(store):
    def pipe_file(self, path, value, mode="overwrite", **rest):
        if mode == "create":
            raise NotImplementedError
        MemoryFileSystem.pipe_file(self, path, value)

    use(store, pipe_file=pipe_file)
    assert store.create("s/f", b"first") is True
    assert store.create("s/f", b"second") is False
    assert store.get("s/f", 99) == b"first"


def test_a_store_that_ignores_the_condition_is_found_out_and_looked_at_first(store, caplog):
    def pipe_file(self, path, value, mode="overwrite", **rest):
        MemoryFileSystem.pipe_file(self, path, value)

    use(store, pipe_file=pipe_file)
    assert store.create("s/f", b"first") is True
    assert "does not honour create-if-absent" in store.caution
    assert "a path of its own" in caplog.text
    assert store.create("s/f", b"second") is False
    assert store.create("s/g", b"third") is True
    assert store.get("s/f", 99) == b"first"
    assert len(caplog.records) == 1


def refusing(code):
    def pipe_file(self, path, value, mode="overwrite", **rest):
        cause = RuntimeError()
        cause.response = {"Error": {"Code": code}}
        raise OSError(22, "Invalid argument") from cause

    return pipe_file


def test_a_put_that_s3_refuses_because_the_name_is_taken_is_no_error(store):
    use(store, pipe_file=refusing("PreconditionFailed"))
    assert store.create("s/f", b"second") is False
    use(store, pipe_file=refusing("SlowDown"))
    with pytest.raises(CheckpointError, match="s/f: OSError"):
        store.create("s/f", b"second")


def test_a_store_that_honours_it_needs_no_caution(store):
    assert store.create("s/f", b"first") is True
    assert store.caution == ""


def test_fsspecs_own_create_is_a_look_and_a_write_and_so_not_trusted(store):
    use(store, pipe_file=AbstractFileSystem.pipe_file)
    assert store.create("s/f", b"first") is True
    assert store.caution
    assert store.create("s/f", b"second") is False


def test_no_folder_is_made_where_that_would_make_a_bucket(monkeypatch):
    made = []
    names = {"call_s3": None, "makedirs": lambda self, path, **rest: made.append(path),
             "cachable": False}  # fmt: skip
    fs = type("S3", (MemoryFileSystem,), names)()
    monkeypatch.setattr(url_store, "_connect", lambda url: (fs, f"/{uuid.uuid4().hex}/run"))
    store = UrlStore("s3://bucket/run")
    store.put("s/f", [memoryview(b"x")])
    assert store.create("s/g", b"y")
    assert made == []


def test_a_folder_that_is_its_own_object_is_removed_and_is_no_file(store):
    asked, call_s3 = listing([{}])
    use(store, call_s3=call_s3)
    store._root = "/bucket/run"
    store.put("s/f", [memoryview(b"x")])
    itself = [{"name": "/bucket/run/s/", "type": "file", "size": 0}]
    store._fs.ls = lambda path, detail: itself
    assert store.files("s") == []
    store.remove_folder("s")
    assert asked == [("delete_object", {"Bucket": "", "Key": "bucket/run/s/"})]


def test_a_folder_object_that_cannot_be_removed_is_left(store):
    def refuse(self, method, **options):
        raise OSError("Internal Error")

    use(store, call_s3=refuse)
    store.put("s/f", [memoryview(b"x")])
    store.remove_folder("s")
    assert store.folders() == []


def test_a_wrong_checksum_of_the_server_has_a_remedy(store):
    class FlexibleChecksumError(Exception):
        pass

    def cat_file(self, *args, **rest):
        raise FlexibleChecksumError("Expected checksum a did not match calculated checksum: b")

    use(store, cat_file=cat_file)
    with pytest.raises(CheckpointError, match="Expected checksum") as caught:
        store.get("s/f", 9)
    assert "AWS_RESPONSE_CHECKSUM_VALIDATION" in caught.value.remedy


def raising(error):
    def url_to_fs(url):
        raise error

    return url_to_fs


def test_a_client_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(fsspec.core, "url_to_fs", raising(ImportError("No module s3fs")))
    for scheme, remedy in (("s3", "msctl[s3]"), ("hdfs", "msctl[hdfs]"), ("gs", "gcsfs")):
        with pytest.raises(MissingError, match=f"client for {scheme}:// is not") as caught:
            UrlStore(f"{scheme}://a/b")
        assert remedy in caught.value.remedy
    with pytest.raises(MissingError) as caught:
        UrlStore("odd://a")
    assert "No module s3fs" in caught.value.remedy


def test_a_client_that_refuses_its_configuration_is_no_traceback(monkeypatch):
    error = RuntimeError('InvalidArgument("No fs.defaultFS")\n  at x')
    monkeypatch.setattr(fsspec.core, "url_to_fs", raising(error))
    with pytest.raises(CheckpointError, match=r'hdfs:///x: RuntimeError: .*defaultFS"\)$'):
        UrlStore("hdfs:///x")


def test_a_writer_who_lost_a_race_finds_out(store):
    def pipe_file(self, path, value, mode="overwrite", **rest):
        MemoryFileSystem.pipe_file(self, path, b"the other's")

    use(store, pipe_file=pipe_file)
    assert store.create("s/f", b"mine") is False


def test_every_foreign_error_names_the_place(store):
    def refuse(self, *args, **rest):
        raise RuntimeError("denied " * 100)

    use(
        store,
        cat_file=refuse,
        _open=refuse,
        pipe_file=refuse,
        exists=refuse,
        rm_file=refuse,
        rm=refuse,
        ls=refuse,
    )
    for act in (
        lambda: store.read("s/f", 0, []),
        lambda: store.get("s/f", 9),
        lambda: store.put("s/f", []),
        lambda: store.create("s/f", b""),
        lambda: store.remove(["s/f"]),
        lambda: store.remove_folder("s"),
        lambda: store.files("s"),
    ):
        with pytest.raises(CheckpointError, match=f"{store.url}/s.*: RuntimeError: den") as caught:
            act()
        assert len(caught.value.what) < 400


def listing(pages):
    asked = []

    def call_s3(self, method, **options):
        asked.append((method, options))
        return pages[len(asked) - 1]

    return asked, call_s3


def test_unfinished_uploads_of_this_root_are_listed_page_by_page(store):
    began = datetime(2026, 1, 2, tzinfo=UTC)
    pages = [
        {
            "Uploads": [
                {"Key": "run/step-1/f", "UploadId": "u1", "Initiated": began},
                {"Key": "run/f", "UploadId": "u2", "Initiated": began},
                {"Key": "run/a/b/f", "UploadId": "u3", "Initiated": began},
            ],
            "IsTruncated": True, "NextKeyMarker": "k", "NextUploadIdMarker": "u",
        },
        {"Uploads": [{"Key": "run/step-2/g", "UploadId": "u4", "Initiated": None}]},
    ]  # fmt: skip
    asked, call_s3 = listing(pages)
    use(store, call_s3=call_s3)
    store._root = "bucket/run"
    assert store.uploads() == [
        Upload("step-1/f", "u1", began.timestamp()), Upload("step-2/g", "u4", 0.0)
    ]  # fmt: skip
    plain = {"Bucket": "bucket", "Prefix": "run/"}
    assert asked == [
        ("list_multipart_uploads", plain),
        ("list_multipart_uploads", plain | {"KeyMarker": "k", "UploadIdMarker": "u"}),
    ]


def test_a_bucket_may_be_the_root_and_may_have_no_uploads(store):
    asked, call_s3 = listing([{}])
    use(store, call_s3=call_s3)
    store._root = "bucket"
    assert store.uploads() == []
    assert asked[0][1] == {"Bucket": "bucket", "Prefix": ""}


def test_a_listing_without_end_is_cut_off(store, monkeypatch):
    monkeypatch.setattr(url_store, "_UPLOADS_LIMIT", 3)
    page = {
        "Uploads": [{"Key": "run/s/f", "UploadId": "u", "Initiated": None}] * 2,
        "IsTruncated": True, "NextKeyMarker": "k", "NextUploadIdMarker": "u",
    }  # fmt: skip
    asked, call_s3 = listing([page] * 9)
    use(store, call_s3=call_s3)
    store._root = "bucket/run"
    assert len(store.uploads()) == 4
    assert len(asked) == 2


def test_an_upload_is_aborted_by_its_key_and_may_be_gone(store):
    asked, call_s3 = listing([{}])
    use(store, call_s3=call_s3)
    store._root = "bucket/run"
    store.abort(Upload("step-1/f", "u1", 0.0))
    named = {"Bucket": "bucket", "Key": "run/step-1/f", "UploadId": "u1"}
    assert asked == [("abort_multipart_upload", named)]

    def gone(self, method, **options):
        raise FileNotFoundError

    use(store, call_s3=gone)
    store.abort(Upload("step-1/f", "u1", 0.0))

    def denied(self, method, **options):
        raise PermissionError("no")

    use(store, call_s3=denied)
    with pytest.raises(CheckpointError, match="step-1/f: PermissionError"):
        store.abort(Upload("step-1/f", "u1", 0.0))
    with pytest.raises(CheckpointError, match="PermissionError"):
        store.uploads()


@pytest.mark.parametrize(
    ("entry", "seconds"),
    [
        ({"mtime": 5}, 5.0),
        ({"LastModified": datetime(1970, 1, 2, tzinfo=UTC)}, 86400.0),
        ({"mtime": None, "created": 7.5}, 7.5),
        ({"mtime": 1, "created": 2}, 1.0),
        ({"modified": "yesterday"}, 0.0),
        ({"modification_time": 5500, "access_time": 1}, 5.5),
        ({"modification_time": None}, 0.0),
        ({}, 0.0),
    ],
)
def test_stores_name_the_time_of_change_differently(entry, seconds):
    assert url_store._changed(entry) == seconds
