use proptest::prelude::*;

use super::*;

/// One fragment with its mark.
fn fragment(data: &[u8], last: bool) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    let mark = if last { LAST_FRAGMENT | length } else { length };
    [&mark.to_be_bytes(), data].concat()
}

/// Feeds `stream` in reads of at most `step` bytes; returns the records and how it ended.
fn read_all(stream: &[u8], step: usize) -> (Vec<Bytes>, Result<(), RecordError>) {
    let mut reader = RecordReader::new();
    let mut records = Vec::new();
    let mut rest = stream;
    loop {
        loop {
            match reader.take() {
                Ok(Some(record)) => records.push(record),
                Ok(None) => break,
                Err(error) => return (records, Err(error)),
            }
        }
        if rest.is_empty() {
            return (records, Ok(()));
        }
        if reader.claim().is_some() {
            reader.grant();
        }
        let mut room = reader.room();
        let taken = room.remaining_mut().min(step).min(rest.len());
        room.put_slice(&rest[..taken]);
        rest = &rest[taken..];
    }
}

#[test]
fn a_claim_alone_reserves_nothing_and_a_huge_one_is_an_error() {
    let mut reader = RecordReader::new();
    reader.room().put_u32(LAST_FRAGMENT | 0x0010_0000);
    assert_eq!(reader.take(), Ok(None));
    assert!(reader.room().remaining_mut() <= RECEIVE_BYTES_IDLE);
    assert!(reader.held_bytes() <= 2 * RECEIVE_BYTES_IDLE);

    let mut reader = RecordReader::new();
    reader.room().put_u32(LAST_FRAGMENT | 0x4000_0000);
    assert_eq!(reader.take(), Err(RecordError::TooLong));
    assert!(reader.held_bytes() <= RECEIVE_BYTES_IDLE);
}

#[test]
fn a_record_may_be_as_long_as_the_limit_and_no_longer() {
    for (length, fits) in [
        (limits::RECORD_BYTES_MAX, true),
        (limits::RECORD_BYTES_MAX + 1, false),
    ] {
        let data = vec![3; length];
        let (records, end) = read_all(&fragment(&data, true), usize::MAX);
        assert_eq!(records.len(), usize::from(fits));
        assert_eq!(end.is_ok(), fits);
        let (first, second) = data.split_at(length / 2);
        let stream = [fragment(first, false), fragment(second, true)].concat();
        let (records, end) = read_all(&stream, usize::MAX);
        assert_eq!(records.len(), usize::from(fits));
        assert_eq!(end.is_ok(), fits);
    }
}

#[test]
fn empty_fragments_count_and_end() {
    let many = [0; MARK_BYTES].repeat(2000);
    assert_eq!(read_all(&many, 4096).1, Err(RecordError::TooManyFragments));
    let stream = [
        fragment(b"", false),
        fragment(b"ab", false),
        fragment(b"", false),
        fragment(b"c", true),
        fragment(b"", true),
    ]
    .concat();
    let (records, end) = read_all(&stream, 1);
    assert_eq!(records, [&b"abc"[..], b""]);
    assert_eq!(end, Ok(()));
}

#[test]
fn big_records_are_hardly_copied() {
    let data = vec![5; 1024 * 1024];
    let stream = fragment(&data, true).repeat(8);
    let mut reader = RecordReader::new();
    let (mut rest, mut found, mut copied) = (stream.as_slice(), 0, 0);
    while !rest.is_empty() {
        if reader.claim().is_some() {
            reader.grant();
        }
        let before = reader.buffer.as_ptr();
        let have = reader.buffer.len();
        let _room = reader.room();
        if reader.buffer.as_ptr() != before {
            copied += have;
        }
        let mut room = reader.room();
        let taken = room.remaining_mut().min(rest.len());
        room.put_slice(&rest[..taken]);
        rest = &rest[taken..];
        while let Some(record) = reader.take().unwrap() {
            assert_eq!(record.len(), data.len());
            found += 1;
        }
    }
    assert_eq!(found, 8);
    // The first has to earn trust, the others come into room of their size.
    let first = RECEIVE_BYTES_IDLE * (1 + GROWTH_MAX) * (1 + GROWTH_MAX);
    assert!(
        copied <= first + 8 * RECEIVE_BYTES_PROBE,
        "{copied} bytes copied"
    );
}

#[test]
fn an_idle_reader_gives_its_memory_back() {
    let mut reader = RecordReader::new();
    let mut room = reader.room();
    room.put_slice(&fragment(b"abcd", true));
    assert!(reader.take().unwrap().is_some());
    assert!(!reader.is_inside_record());
    assert!(reader.held_bytes() > 0);
    reader.release_idle();
    assert_eq!(reader.held_bytes(), 0);
}

/// Puts as much of `stream` into the reader as it takes without a grant.
fn feed_ungranted<'a>(reader: &mut RecordReader, mut stream: &'a [u8]) -> &'a [u8] {
    loop {
        assert_eq!(reader.take(), Ok(None));
        if reader.claim().is_some() || stream.is_empty() {
            return stream;
        }
        let mut room = reader.room();
        let taken = room.remaining_mut().min(stream.len());
        assert!(taken > 0, "neither room nor a claim");
        room.put_slice(&stream[..taken]);
        stream = &stream[taken..];
    }
}

#[test]
fn a_big_record_claims_its_room_once_and_holds_no_more() {
    let data = vec![5; 1024 * 1024];
    let (first, second) = data.split_at(data.len() / 2);
    let pieces = [fragment(first, false), fragment(second, true)].concat();
    let small: Vec<u8> = data
        .chunks(4000)
        .flat_map(|part| fragment(part, false))
        .collect();
    let small = [small, fragment(b"", true)].concat();
    for stream in [fragment(&data, true), pieces, small] {
        let mut reader = RecordReader::new();
        // The second time, records of this size are expected, and old room could be taken again.
        for _ in 0..2 {
            let mut rest = feed_ungranted(&mut reader, &stream);
            assert!(reader.held_bytes() <= RECEIVE_BYTES_FREE + RECEIVE_BYTES_IDLE);
            let claimed = reader.claim().unwrap();
            assert!(claimed <= limits::RECORD_BYTES_MAX + RECEIVE_BYTES_IDLE);
            reader.grant();
            let record = loop {
                if let Some(record) = reader.take().unwrap() {
                    break record;
                }
                assert_eq!(reader.claim(), None);
                let mut room = reader.room();
                let taken = room.remaining_mut().min(rest.len());
                room.put_slice(&rest[..taken]);
                rest = &rest[taken..];
                assert!(reader.held_bytes() <= claimed + RECEIVE_BYTES_FREE);
            };
            assert_eq!(record, data);
            assert!(!reader.granted);
            drop(record);
            let _room = reader.room();
            assert!(reader.held_bytes() <= RECEIVE_BYTES_FREE);
        }
    }
}

fn records() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    let size = prop_oneof![6 => 0..40_usize, 1 => 16_000..17_000_usize, 1 => 60_000..70_000_usize];
    let fragment = (size, any::<u8>()).prop_map(|(size, byte)| vec![byte; size]);
    let record = proptest::collection::vec(fragment, 1..4);
    proptest::collection::vec(record, 0..8)
}

proptest! {
    /// However records are cut into fragments and fragments into reads, the records come out.
    #[test]
    fn records_come_out_as_they_went_in(records in records(), step in 1..40_000_usize) {
        let mut stream = Vec::new();
        for record in &records {
            let last = record.len() - 1;
            for (index, data) in record.iter().enumerate() {
                stream.extend(fragment(data, index == last));
            }
        }
        let step = if stream.len() > 10_000 { step.max(100) } else { step };
        let (found, end) = read_all(&stream, step);
        prop_assert_eq!(end, Ok(()));
        let expected: Vec<Vec<u8>> = records.iter().map(|record| record.concat()).collect();
        prop_assert_eq!(found, expected);
    }

    /// No stream panics, and memory stays within what has arrived.
    #[test]
    fn any_stream_is_survived(stream in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut reader = RecordReader::new();
        reader.room().put_slice(&stream);
        while let Ok(Some(_)) = reader.take() {}
        let _room = reader.room();
        prop_assert!(reader.held_bytes() <= 4 * RECEIVE_BYTES_IDLE);
    }
}
