//! Archives and pickles in PyTorch's format, and hostile imitations.

use super::*;

/// A pickle being written.
#[derive(Default)]
struct Pickle(Vec<u8>);

impl Pickle {
    fn new() -> Self {
        Self(vec![0x80, 2])
    }

    fn op(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(self, text: &str) -> Self {
        self.op(b"X").op(&(text.len() as u32).to_le_bytes()).op(text.as_bytes())
    }

    fn int(self, number: i32) -> Self {
        self.op(b"J").op(&number.to_le_bytes())
    }

    fn ints(self, numbers: &[i32]) -> Self {
        numbers.iter().fold(self.op(b"("), |pickle, &number| pickle.int(number)).op(b"t")
    }

    fn global(self, name: &str) -> Self {
        self.op(b"c").op(name.as_bytes()).op(b"\n")
    }

    /// Writes a tensor of 32-bit floats whose storage is entry `0` with `stored` elements.
    fn tensor(self, stored: i32, offset: i32, shape: &[i32], strides: &[i32]) -> Self {
        self.tensor_of("FloatStorage", "0", stored).view(offset, shape, strides)
    }

    fn tensor_of(self, class: &str, key: &str, stored: i32) -> Self {
        let storage = self.global("torch._utils\n_rebuild_tensor_v2").op(b"((").text("storage");
        storage.global(&format!("torch\n{class}")).text(key).text("cpu").int(stored).op(b"tQ")
    }

    fn view(self, offset: i32, shape: &[i32], strides: &[i32]) -> Self {
        self.int(offset).ints(shape).ints(strides).op(b"\x89").global("collections\nOrderedDict").op(b")RtR")
    }

    /// Writes a dictionary with one entry `w`, whose value `value` writes.
    fn named(value: impl Fn(Self) -> Self) -> Vec<u8> {
        value(Self::new().op(b"}").text("w")).op(b"s.").0
    }
}

/// Builds a zip archive of uncompressed entries.
fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut list = Vec::new();
    for (name, bytes) in entries {
        let header = file.len() as u32;
        let sizes = [(bytes.len() as u32).to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat();
        let lengths = [(name.len() as u16).to_le_bytes(), 0u16.to_le_bytes()].concat();
        let common = [&[0; 10][..], &[0; 4], &sizes, &lengths].concat();
        file.extend([&b"PK\x03\x04"[..], &common, name.as_bytes(), bytes].concat());
        list.extend(
            [&b"PK\x01\x02\0\0"[..], &common, &[0; 10], &header.to_le_bytes(), name.as_bytes()].concat(),
        );
    }
    let at = file.len() as u32;
    let size = list.len() as u32;
    let count = entries.len() as u16;
    file.extend(list);
    file.extend([&b"PK\x05\x06\0\0\0\0"[..], &count.to_le_bytes(), &count.to_le_bytes()].concat());
    file.extend([&size.to_le_bytes()[..], &at.to_le_bytes(), &[0, 0]].concat());
    file
}

fn checkpoint(pickle: &[u8], floats: usize) -> Vec<u8> {
    archive(&[("m/data.pkl", pickle), ("m/byteorder", b"little"), ("m/data/0", &vec![0; 4 * floats])])
}

fn table(bytes: &[u8]) -> Result<Table, TableError> {
    read(&FileReader::memory(bytes), None)
}

#[track_caller]
fn refused(bytes: &[u8], tensor: Option<&str>, want: &str) {
    let error = table(bytes).unwrap_err();
    assert_eq!(error.tensor.as_deref(), tensor, "{}", error.reason);
    assert!(error.reason.contains(want), "{}", error.reason);
}

#[test]
fn tensors_parameters_and_state_dictionaries_with_metadata_are_read() {
    let plain = Pickle::named(|pickle| pickle.tensor(6, 2, &[2, 2], &[2, 1]));
    let parameter = Pickle::named(|pickle| {
        let tensor =
            pickle.global("torch._utils\n_rebuild_parameter").op(b"(").tensor(6, 2, &[2, 2], &[2, 1]);
        tensor.op(b"\x88").global("collections\nOrderedDict").op(b")RtR")
    });
    let ordered = Pickle::new().global("collections\nOrderedDict").op(b")R(").text("w");
    let with_metadata = ordered.tensor(6, 2, &[2, 2], &[2, 1]).op(b"u}").text("_metadata").op(b"}sb.").0;
    for pickle in [plain, parameter, with_metadata] {
        let bytes = checkpoint(&pickle, 6);
        let numbers = bytes.windows(8).position(|window| window == b"m/data/0").unwrap() + 8;
        let want = Entry {
            stored: StoredType::Float(FloatType::F32),
            shape: vec![2, 2],
            strides: None,
            offset: (numbers + 2 * 4) as u64,
        };
        assert_eq!(table(&bytes).unwrap(), Table::from([("w".to_owned(), want)]));
    }
}

#[test]
fn later_protocols_with_frames_and_implicit_memos_are_read() {
    let storage = Pickle(vec![0x80, 4, 0x95, 0, 0, 0, 0, 0, 0, 0, 0]).op(b"}\x94\x8c\x01w\x94");
    let class = |pickle: Pickle, module: &str, name: &str| {
        [module, name]
            .iter()
            .fold(pickle, |pickle, text| pickle.op(&[0x8c, text.len() as u8]).op(text.as_bytes()).op(b"\x94"))
            .op(b"\x93\x94")
    };
    let tensor = class(storage, "torch._utils", "_rebuild_tensor_v2").op(b"((\x8c\x07storage");
    let stored = class(tensor, "torch", "HalfStorage").op(b"\x8c\x010\x8c\x03cpuK\x04tQ");
    let view = stored.op(b"K\x00K\x02K\x02\x86K\x02K\x01\x86\x89");
    let pickle = class(view, "collections", "OrderedDict").op(b")RtRs.").0;
    let table = table(&checkpoint(&pickle, 2)).unwrap();
    assert_eq!(
        (&table["w"].stored, table["w"].shape.as_slice()),
        (&StoredType::Float(FloatType::F16), &[2, 2][..])
    );
}

#[test]
fn objects_that_are_not_tensors_are_rejected_with_their_names() {
    let call = |function: &str| {
        let function = function.to_owned();
        Pickle::named(move |pickle| pickle.global(&function).op(b"(").text("echo owned").op(b"tR"))
    };
    for (pickle, tensor, want) in [
        (call("os\nsystem"), None, "it refers to `os.system`, which no tensor needs"),
        (call("builtins\neval"), None, "`builtins.eval`"),
        (call("torch._utils\n_rebuild_tensor_v3"), None, "`torch._utils._rebuild_tensor_v3`"),
        (call("numpy.core.multiarray\n_reconstruct"), None, "`numpy.core.multiarray._reconstruct`"),
        (call("a\rb\nc"), None, "`a?b.c`"),
        (call("torch\nFloatStorage"), None, "calls Storage"),
        (Pickle::named(|pickle| pickle.int(3)), Some("w"), "not a tensor"),
        (Pickle::named(|pickle| pickle.op(b"}")), Some("w"), "not a tensor"),
        (Pickle::new().op(b"].").0, None, "no dictionary"),
        (Pickle::new().op(b"}").int(1).int(2).op(b"s.").0, None, "without a name"),
        (Pickle::named(|pickle| pickle.op(b"i")), None, "opcode 0x69"),
        (Pickle::named(|pickle| pickle.op(b"P1\n")), None, "opcode 0x50"),
    ] {
        refused(&checkpoint(&pickle, 6), tensor, want);
    }
}

#[test]
fn a_view_beyond_its_storage_is_rejected() {
    for (offset, shape, strides) in [
        (0, &[7][..], &[1][..]),
        (1, &[6], &[1]),
        (7, &[1], &[1]),
        // An expanded tensor with more elements than are stored.
        (0, &[1_000_000, 1_000_000], &[0, 0]),
        (0, &[2, 3], &[4, 1]),
        (0, &[1 << 30, 1 << 30, 1 << 30], &[1, 1, 1]),
    ] {
        let pickle = Pickle::named(|pickle| pickle.tensor(6, offset, shape, strides));
        refused(&checkpoint(&pickle, 6), Some("w"), "more than the 6 elements stored");
    }
    for (shape, strides, want) in [
        (&[-1][..], &[1][..], "negative"),
        (&[2], &[], "1 sizes and 0 strides"),
        (&[1; 9], &[1; 9], "9 dimensions"),
    ] {
        let pickle = Pickle::named(|pickle| pickle.tensor(6, 0, shape, strides));
        let error = table(&checkpoint(&pickle, 6)).unwrap_err();
        assert!(error.reason.contains(want), "{}", error.reason);
    }
    let absent = Pickle::named(|pickle| pickle.tensor_of("FloatStorage", "1", 6).view(0, &[1], &[1]));
    refused(&checkpoint(&absent, 6), Some("w"), "it has no entry `m/data/1`");
}

#[test]
fn many_names_for_one_storage_may_not_claim_implausibly_many_bytes() {
    let pickle = |names: usize| {
        let all = (0..names).fold(Pickle::new().op(b"}"), |pickle, name| {
            pickle.text(&format!("w{name}")).tensor(10_000, 0, &[10_000], &[1]).op(b"s")
        });
        all.op(b".").0
    };
    assert_eq!(table(&checkpoint(&pickle(4), 10_000)).unwrap().len(), 4);
    refused(&checkpoint(&pickle(50), 10_000), None, "its tensors claim 2000000 bytes of a file of");
}

#[test]
fn bombs_of_nesting_memos_and_repetition_end_quickly() {
    let deep = Pickle::new().op(b"\x85").0;
    refused(&checkpoint(&deep, 1), None, "damaged");
    let nested = Pickle::named(|pickle| pickle.op(b")").op(&b"\x85".repeat(900_000)));
    refused(&checkpoint(&nested, 1), Some("w"), "not a tensor");
    let marks = Pickle::new().op(&b"(".repeat(2_000_000)).0;
    refused(&checkpoint(&marks, 1), None, "more than 1048576 values");
    // Each level contains the previous one twice. Copies would be 2^900 texts.
    let doubling = Pickle::new().text("lol").op(&b"q\0h\0\x86".repeat(900)).op(b".").0;
    refused(&checkpoint(&doubling, 1), None, "no dictionary");
    let memo = Pickle::new().op(b"}r\xff\xff\xff\xff.").0;
    assert!(table(&checkpoint(&memo, 1)).unwrap().is_empty());
    let text = Pickle::new().op(b"X\xff\xff\xff\xff").0;
    refused(&checkpoint(&text, 1), None, "cut off");
    let huge = Pickle::new().op(b"\x8d").op(&u64::MAX.to_le_bytes()).0;
    refused(&checkpoint(&huge, 1), None, "cut off");
    // Names that are written once and used often.
    let long = "w".repeat(1 << 20);
    let name = Pickle::new().op(b"}").text(&long).tensor(1, 0, &[1], &[1]).op(b"s.").0;
    let error = table(&checkpoint(&name, 1)).unwrap_err();
    assert_eq!(error.reason, "its name has 1048576 bytes");
    let key = Pickle::named(|pickle| pickle.tensor_of("FloatStorage", &long, 1).view(0, &[1], &[1]));
    refused(&checkpoint(&key, 1), None, "damaged");
    let class =
        Pickle::named(|pickle| pickle.tensor_of(&format!("{long}Storage"), "0", 1).view(0, &[1], &[1]));
    refused(&checkpoint(&class, 1), None, "it refers to `torch.www");
    let again = Pickle::new().op(b"}(").op(&b"NN".repeat(200_000)).op(b"u.").0;
    refused(&checkpoint(&again, 1), None, "it lists 200000 tensors");
    let number = Pickle::new().op(b"\x8a\xff").op(&[1; 255]).0;
    refused(&checkpoint(&number, 1), None, "more than 64 bits");
}

#[test]
fn no_truncated_or_changed_file_panics() {
    let pickle = Pickle::named(|pickle| pickle.tensor(6, 0, &[2, 3], &[3, 1]));
    let whole = checkpoint(&pickle, 6);
    for len in 0..whole.len() {
        assert!(table(&whole[..len]).is_err(), "cut to {len} of {}", whole.len());
    }
    for at in 0..whole.len() {
        for change in [0x00, 0x01, 0x7f, 0xff] {
            let mut changed = whole.clone();
            changed[at] = change;
            // Tensors that are still accepted lie inside the file.
            for entry in table(&changed).unwrap_or_default().values() {
                let bytes = entry.elements() * entry.stored.bytes_or(1);
                assert!(entry.offset + bytes as u64 <= changed.len() as u64, "byte {at} as {change}");
            }
        }
    }
}

#[test]
fn archives_that_pytorch_does_not_write_are_rejected() {
    let pickle = Pickle::named(|pickle| pickle.tensor(6, 0, &[6], &[1]));
    let good = checkpoint(&pickle, 6);
    let list = good.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let end = good.len() - 22;
    refused(&with(list + 10, &[8]), None, "entry `m/data.pkl` is compressed");
    refused(&with(list + 24, &[0xff; 3]), None, "compressed");
    refused(&with(list + 8, &[1]), None, "encrypted");
    refused(
        &with(list + 20, &[0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]),
        None,
        "more than the file has",
    );
    refused(&with(list + 42, &[9]), None, "not where the list says");
    refused(&with(end + 10, &[0xff, 0xff]), None, "claims 65535 entries and lists 3");
    refused(&with(end + 12, &[0xff, 0xff, 0xff, 0x7f]), None, "list of entries claims");
    refused(&with(end + 12, &[0xff, 0xff]), None, "not in the file");
    refused(&archive(&[("m/data/0", b"")]), None, "no entry `*/data.pkl`");
    refused(&archive(&[("a/data.pkl", b""), ("b/data.pkl", b"")]), None, "two pickles");
    refused(&archive(&[("a/data.pkl", b""), ("a/data.pkl", b"")]), None, "there twice");
    refused(&archive(&[("a/data.pkl", &pickle), ("a/byteorder", b"big")]), None, "little-endian");
    refused(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", None, "before version 1.6");
    refused(b"", None, "cut off or no archive");
    refused(b"PK\x05\x06", None, "cut off or no archive");
}

/// Archives of more than 4 GB store their sizes in other records, which smaller archives may use, too.
#[test]
fn the_records_of_large_archives_are_read() {
    let pickle = Pickle::named(|pickle| pickle.tensor(6, 0, &[6], &[1]));
    let good = checkpoint(&pickle, 6);
    let end = good.len() - 22;
    let list = good.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let record = [
        &b"PK\x06\x06"[..],
        &[0; 28],
        &3u64.to_le_bytes(),
        &((end - list) as u64).to_le_bytes(),
        &(list as u64).to_le_bytes(),
    ];
    let locator = [&b"PK\x06\x07"[..], &[0; 4], &(end as u64).to_le_bytes(), &[0; 4]];
    let unsure = [&b"PK\x05\x06"[..], &[0; 4], &[0xff; 12], &[0, 0]];
    let large = [&good[..end], &record.concat(), &locator.concat(), &unsure.concat()].concat();
    assert_eq!(table(&large).unwrap(), table(&good).unwrap());
}
