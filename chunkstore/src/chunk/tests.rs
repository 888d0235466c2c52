use proptest::prelude::*;

use super::*;

const PLACE: Place = Place {
    pack: 7,
    offset: 64,
};

fn domain() -> Domain {
    Domain {
        id: DomainId::new(5),
        key: [9; 32],
    }
}

fn record(content: &[u8]) -> Record {
    let content = Bytes::copy_from_slice(content);
    Record::new(domain(), domain().chunk_id(&content), content).unwrap()
}

/// Bytes that look random, the same on every run.
fn random_bytes(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_bytes_of_version_1() {
    let record = record(b"hello");
    assert_eq!(record.body, b"hello".as_slice());
    assert_eq!(
        hex(&record.header.encode(PLACE)),
        concat!(
            "4846434b01000000",
            "0000000000000005",
            "b9d9d4492617df1fdc15edd0f8424e7443c9f2b414df663832e330fb9f4ce2a9",
            "0000000500000005",
            "ea8f163db38682925e4491c5e58d4bb3",
            "d88310f7379366c4",
        )
    );
}

#[test]
fn compresses_what_shrinks_and_leaves_the_rest() {
    let text = b"the quick brown fox ".repeat(2000);
    let text_record = record(&text);
    assert_eq!(text_record.header.codec, Codec::Zstd);
    assert!(text_record.body.len() < text.len() / 10);
    assert_eq!(
        text_record.header.plain(text_record.body.clone()).unwrap(),
        text
    );

    let random = random_bytes(128 * 1024);
    assert!(looks_random(&random));
    assert_eq!(record(&random).header.codec, Codec::Raw);
    assert_eq!(record(&random_bytes(100)).header.codec, Codec::Raw);
    assert_eq!(record(b"").header.codec, Codec::Raw);
}

#[test]
fn samples_do_not_hide_what_compresses() {
    // Half random, half zeros.
    let mut half = random_bytes(64 * 1024);
    half.resize(128 * 1024, 0);
    assert!(!looks_random(&half));
    // Base64 has six bits in eight.
    let base64: Vec<u8> = random_bytes(64 * 1024)
        .iter()
        .map(|byte| 64 + byte % 64)
        .collect();
    assert!(!looks_random(&base64));
    assert_eq!(record(&base64).header.codec, Codec::Zstd);
}

#[test]
fn too_large_content_is_refused() {
    let content = Bytes::from(vec![0; CHUNK_BYTES_MAX + 1]);
    let id = domain().chunk_id(&content);
    assert_eq!(
        Record::new(domain(), id, content).unwrap_err(),
        ChunkError::TooLarge(CHUNK_BYTES_MAX + 1)
    );
}

#[test]
fn a_header_is_bound_to_its_place() {
    let bytes = record(b"x").header.encode(PLACE);
    assert!(Header::decode(&bytes, PLACE).is_some());
    let elsewhere = Place {
        offset: 65,
        ..PLACE
    };
    assert!(Header::decode(&bytes, elsewhere).is_none());
    let other_pack = Place { pack: 8, ..PLACE };
    assert!(Header::decode(&bytes, other_pack).is_none());
}

#[test]
fn impossible_headers_are_refused() {
    let good = record(&[1; 100]).header;
    let refused = [
        Header {
            plain_bytes: u32::MAX,
            ..good
        },
        Header {
            stored_bytes: good.plain_bytes,
            codec: Codec::Zstd,
            ..good
        },
        Header {
            stored_bytes: good.plain_bytes + 1,
            codec: Codec::Raw,
            ..good
        },
    ];
    for header in refused {
        assert_eq!(Header::decode(&header.encode(PLACE), PLACE), None);
    }
}

proptest! {
    #[test]
    fn round_trip(content in proptest::collection::vec(0_u8..4, 0..3000)) {
        let record = record(&content);
        let header = Header::decode(&record.header.encode(PLACE), PLACE).unwrap();
        prop_assert_eq!(header, record.header);
        prop_assert!(header.matches_body(&record.body));
        prop_assert_eq!(header.plain(record.body).unwrap(), content);
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed(bit in 0..HEADER_BYTES * 8) {
        let mut bytes = record(b"hello").header.encode(PLACE);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(Header::decode(&bytes, PLACE), None);
    }

    #[test]
    fn decode_is_total(bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES)) {
        let bytes: [u8; HEADER_BYTES] = bytes.try_into().unwrap();
        if let Some(header) = Header::decode(&bytes, PLACE) {
            prop_assert_eq!(header.encode(PLACE), bytes);
        }
    }

    /// Damaged stored bytes never panic and never make more than the header says.
    #[test]
    fn plain_is_total(body in proptest::collection::vec(any::<u8>(), 0..200), plain_bytes in 0_u32..5000) {
        let header = Header { codec: Codec::Zstd, plain_bytes, ..record(b"").header };
        if let Some(plain) = header.plain(Bytes::from(body)) {
            prop_assert_eq!(plain.len(), usize::try_from(plain_bytes).unwrap());
        }
    }
}
