//! File formats, line by line, and the errors of broken files.

use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::run::answer_extraction;
use crate::settings::mode::NumberRule;

/// Writes `bytes` into a file and reads it; paths in errors are cut to the name.
fn read(
    name: &str,
    bytes: &[u8],
    reader: impl Fn(&Path) -> Result<Vec<Item>, DataError>,
) -> Result<Vec<Item>, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    fs::write(&file, bytes).unwrap();
    reader(&file).map_err(|error| error.to_string().replace(folder.path().to_str().unwrap(), ""))
}

fn shown(items: &[Item]) -> Vec<(&str, &str, Option<f64>)> {
    items.iter().map(|item| (&*item.question, &*item.answer, item.truth)).collect()
}

fn numbers(file: &Path) -> Result<Vec<Item>, DataError> {
    pairs(file, Truth::Number)
}

#[test]
fn lines_are_read_in_pairs() {
    let items = read("pairs.txt", b"What is 1 + 1?\r\n2\n -1 - 1 \n -2 \n\n", numbers).unwrap();
    assert_eq!(shown(&items), [("What is 1 + 1?", "2", Some(2.0)), ("-1 - 1", "-2", Some(-2.0))]);
}

#[test]
fn an_answer_may_be_a_fraction_or_no_number_at_all_where_that_is_allowed() {
    let items =
        read("pairs.txt", b"a\n-7/2\nb\nc\nd\n1.5\n", |file| pairs(file, Truth::NumberOrText)).unwrap();
    let truths: Vec<Option<f64>> = items.iter().map(|item| item.truth).collect();
    assert_eq!(truths, [Some(-3.5), None, Some(1.5)]);
}

#[test]
fn labels_and_answers_are_read_by_one_rule() {
    for (text, number, maybe) in [
        ("1,000", Some(1000.0), Some(1000.0)),
        (" -$1,234,567.50 ", Some(-1_234_567.5), Some(-1_234_567.5)),
        ("₹1,00,000", Some(100_000.0), Some(100_000.0)),
        ("１２", Some(12.0), Some(12.0)),
        ("1½", Some(1.5), Some(1.5)),
        ("1_000", Some(1000.0), Some(1000.0)),
        ("$12345", Some(12345.0), Some(12345.0)),
        ("1e3", Some(1000.0), Some(1000.0)),
        ("$5.", Some(5.0), Some(5.0)),
        ("7/2", None, Some(3.5)),
        ("1,00", None, None),
        ("1234,567", None, None),
        ("1,2", None, None),
        ("$", None, None),
        ("5 $", None, None),
        ("$inf", None, None),
        ("true", None, None),
    ] {
        assert_eq!(Truth::Number.of(text), number.map(Some), "{text:?}");
        assert_eq!(Truth::NumberOrText.of(text), Some(maybe), "{text:?}");
        assert_eq!(Truth::AfterHashes.of(&format!("so 3\n#### {text}")), number.map(Some), "{text:?}");
        if let Some(value) = maybe {
            assert_eq!(answer_extraction::value(text, NumberRule::Last), Some(value), "{text:?}");
        }
    }
}

#[test]
fn gsm8k_answers_end_in_their_number() {
    let lines = br#####"{"question": "q", "answer": "so 1,5<<x>>\n#### 1,234"}
{"question": "r", "answer": "#### -2"}"#####;
    let items = read("test.jsonl", lines, |file| questions(file, Truth::AfterHashes)).unwrap();
    assert_eq!(items.iter().map(|item| item.truth).collect::<Vec<_>>(), [Some(1234.0), Some(-2.0)]);
}

#[test]
fn preprocessed_answers_may_be_numbers_or_texts() {
    let lines =
        b"{\"question\": \"q\", \"answer\": \"3\", \"more\": 1}\n{\"question\": \"r\", \"answer\": 4}\n";
    let items = read("test.jsonl", lines, |file| questions(file, Truth::Number)).unwrap();
    assert_eq!(shown(&items), [("q", "3", Some(3.0)), ("r", "4", Some(4.0))]);
}

#[test]
fn questions_are_read_from_an_array_and_refused_with_their_line() {
    let array = b"[\n{\"question\": \"q\", \"answer\": \"3\"},\n {\"question\": \"r\",\n\"answer\": 4}]";
    let items = read("test.jsonl", array, |file| questions(file, Truth::Number)).unwrap();
    assert_eq!(shown(&items), [("q", "3", Some(3.0)), ("r", "4", Some(4.0))]);
    for (value, said) in [
        ("{\"question\": \"q\", \"answer\": null}", "the answer is null"),
        ("{\"question\": \"q\", \"answer\": [3]}", "the answer `[3]` is neither a number nor a text"),
        ("{\"question\": {\"text\": 1}, \"answer\": 3}", "found an object, expected a text"),
    ] {
        for text in [format!("\n{value}"), format!("[{{\"question\": \"q\", \"answer\": \"3\"}},\n{value}]")]
        {
            let message =
                read("test.jsonl", text.as_bytes(), |file| questions(file, Truth::Text)).unwrap_err();
            assert_eq!(message, format!("/test.jsonl line 2: {said}"));
        }
    }
}

#[test]
fn jokes_are_split_at_the_first_tab_packed_or_not() {
    let lines = b"3\tone\ttwo\n0\tthree \n";
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(lines).unwrap();
    for (name, bytes) in [("test.tsv", lines.to_vec()), ("test.tsv.gz", packed.finish().unwrap())] {
        let items = read(name, &bytes, scores).unwrap();
        assert_eq!(shown(&items), [("one\ttwo", "3", Some(3.0)), ("three", "0", Some(0.0))], "{name}");
    }
}

#[test]
fn every_question_of_a_passage_is_an_item_and_its_right_answers_are_joined() {
    let line = br#"{"idx": 0, "passage": {"text": " P. ", "questions": [
        {"question": "Who? ", "idx": 0, "answers": [{"text": "A", "label": 1, "idx": 0}, {"text": "B", "label": 0},
         {"text": "C", "label": 1}]},
        {"question": "Why?", "answers": [{"text": "D", "label": 0}]}]}}"#;
    let line = String::from_utf8_lossy(line).replace('\n', " ");
    let items = read("val.jsonl", line.as_bytes(), passages).unwrap();
    assert_eq!(shown(&items), [("P.\n\nQuestion: Who?", "A | C", None), ("P.\n\nQuestion: Why?", "", None)]);
    let unlabelled = line.replace(", \"label\": 0", "");
    assert_eq!(
        read("test.jsonl", unlabelled.as_bytes(), passages),
        Err("/test.jsonl line 1: the answers have no labels; use the validation set".to_owned())
    );
}

#[test]
fn errors_name_the_file_and_the_line() {
    for (text, message) in [
        ("", "/pairs.txt holds no questions"),
        ("\n \n", "/pairs.txt holds no questions"),
        ("a\n1\nb\n", "/pairs.txt has 3 lines; expected pairs of a question and its answer"),
        (
            "{\"question\": \"a\"}\n1\n",
            "/pairs.txt holds JSON; this task reads questions and answers in turn, each on a separate line",
        ),
        ("a\n1\nb\ntwo\n", "/pairs.txt line 4: the answer \"two\" is not a number"),
        ("a\nNaN\n", "/pairs.txt line 2: the answer \"NaN\" is not a number"),
        (
            "a\n1.234,5\n",
            "/pairs.txt line 2: the answer \"1.234,5\" is not a number; decimals need a point, such as 1234.5",
        ),
    ] {
        assert_eq!(read("pairs.txt", text.as_bytes(), numbers), Err(message.to_owned()), "{text:?}");
    }
    let broken =
        read("a.jsonl", b"{\"question\": \"q\"}", |file| questions(file, Truth::Number)).unwrap_err();
    assert!(broken.starts_with("/a.jsonl line 1: missing field `answer`"), "{broken}");
    assert_eq!(
        read("a.tsv", b"7 no tab\n", scores),
        Err("/a.tsv line 1: expected a score, a tab and a text".to_owned())
    );
    assert_eq!(
        read("a.jsonl", b"{\"question\": \"q\", \"answer\": \"18\"}", |file| questions(
            file,
            Truth::AfterHashes
        )),
        Err("/a.jsonl line 1: the answer \"18\" has no number after `#### `".to_owned())
    );
    let error = numbers(Path::new("/nowhere/pairs.txt")).unwrap_err();
    assert_eq!(error.to_string(), "could not read /nowhere/pairs.txt");
}

#[test]
fn a_file_is_read_up_to_a_limit_packed_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    let packed = folder.path().join("packed.gz");
    fs::write(&plain, [b'x'; 100]).unwrap();
    let mut encoder = GzEncoder::new(fs::File::create(&packed).unwrap(), Compression::best());
    encoder.write_all(&[b'x'; 100]).unwrap();
    encoder.finish().unwrap();
    for file in [&plain, &packed] {
        assert_eq!(text_within(file, 100).unwrap().len(), 100);
        assert!(matches!(text_within(file, 99), Err(DataError::TooLarge { bytes_max: 99, .. })), "{file:?}");
    }
    // Twenty megabytes of zeros in a few kilobytes.
    let mut encoder = GzEncoder::new(fs::File::create(&packed).unwrap(), Compression::fast());
    encoder.write_all(&vec![0; 20 << 20]).unwrap();
    encoder.finish().unwrap();
    let message = text_within(&packed, 1 << 20).unwrap_err().to_string();
    assert!(message.ends_with("packed.gz is larger than 1 MiB when it is unpacked"), "{message}");
}

#[test]
fn what_is_no_data_file_is_named_for_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let message = questions(folder.path(), Truth::Text).unwrap_err().to_string();
    assert!(message.ends_with("is a folder; name a file in it"), "{message}");
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n";
    for name in ["test.jsonl", "test.tsv.gz"] {
        let message = read(name, pointer, scores).unwrap_err();
        assert!(
            message.ends_with("is a pointer of Git LFS, not the file itself: fetch it with `git lfs pull`")
        );
    }
    let message = read("pairs.txt", b"1 + 1\n2\n\xff\n3\n", numbers).unwrap_err();
    assert!(
        message.starts_with("/pairs.txt line 3: it is not UTF-8 text; if it is in Latin-1 "),
        "{message}"
    );
    for (bytes, format) in [
        (&b"PK\x03\x04rest"[..], "a spreadsheet (.xlsx, .ods) or another ZIP archive"),
        (b"\xd0\xcf\x11\xe0\xa1", "a spreadsheet (.xls)"),
        (b"PAR1\x15", "Parquet, which is not read"),
        (b"\x1f\x8b\x08", "compressed by gzip, but its name does not end in .gz"),
        (b"\xff\xfe1\0\n\0", "text in UTF-16"),
        (b"\xfe\xff\x001\0\n", "text in UTF-16"),
        (b"1\0\n\x002\0", "text in UTF-16"),
        (b"\x001\0\n\x002", "text in UTF-16"),
    ] {
        let message = read("pairs.txt", bytes, numbers).unwrap_err();
        assert!(message.starts_with(&format!("/pairs.txt is {format}")), "{message}");
    }
    let marked = read("pairs.txt", "\u{feff}1 + 1\n2\n".as_bytes(), numbers).unwrap();
    assert_eq!(shown(&marked), [("1 + 1", "2", Some(2.0))]);
    let message = read("test.jsonl", b"[\"a\", \"b\"]x\n", |file| questions(file, Truth::Text)).unwrap_err();
    assert_eq!(message, "/test.jsonl line 1: it is not JSON (column 11)");
    let message = read("test.jsonl", b"7\n", |file| questions(file, Truth::Text)).unwrap_err();
    assert_eq!(message, "/test.jsonl line 1: found the number `7`, expected an object");
}
