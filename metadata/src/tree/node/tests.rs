use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn keys() -> TreeKeys {
    TreeKeys::new(DomainId::new(1), &[1; 32], &[2; 32])
}

/// A node of `level` with these entries.
fn encode(level: u8, pairs: &BTreeMap<Vec<u8>, Vec<u8>>) -> Node {
    let mut builder = NodeBuilder::new(level);
    for (key, value) in pairs {
        let counters = match level {
            0 => measure(key, value),
            _ => decode_child(value).unwrap().1,
        };
        builder.push(key, value, counters);
    }
    assert_eq!(builder.count(), pairs.len());
    let length = builder.len();
    let node = builder.finish(&keys());
    assert_eq!(node.bytes().len(), length);
    node
}

/// All entries, by going through them.
fn content(node: &Node) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut pairs, mut at) = (BTreeMap::new(), Position::first(node));
    while let Some(key) = at.key() {
        pairs.insert(key.to_vec(), at.value().to_vec());
        at.advance();
    }
    pairs
}

fn parse(bytes: &[u8]) -> Result<Node, NodeError> {
    Node::parse(keys().node_id(bytes), Bytes::copy_from_slice(bytes))
}

/// Whatever the decoder takes is what the encoder makes of it.
fn check_canonical(bytes: &[u8]) {
    if let Ok(node) = parse(bytes) {
        let again = encode(node.level(), &content(&node));
        assert_eq!(again.bytes(), bytes);
        assert_eq!(again.counters(), node.counters());
        assert_eq!(again.count(), node.count());
    }
}

/// Keys as images have them, with much in common, and a few odd ones.
fn a_key() -> impl Strategy<Value = Vec<u8>> {
    let inode = prop_oneof![0..4_u64, Just(256), Just(u64::MAX)];
    let name = proptest::collection::vec(prop_oneof![Just(b'a'), Just(0xff), Just(1)], 1..6);
    let tail = prop_oneof![
        Just(vec![0]),
        (0..4_u64, name)
            .prop_map(|(hash, name)| { [&[1][..], &(hash << 60).to_be_bytes(), &name].concat() }),
        (0..300_u32).prop_map(|block| [&[2][..], &block.to_be_bytes()].concat()),
    ];
    prop_oneof![
        9 => (inode, tail).prop_map(|(inode, tail)| [&inode.to_be_bytes()[..], &tail].concat()),
        1 => proptest::collection::vec(any::<u8>(), 0..300),
    ]
}

fn leaves() -> impl Strategy<Value = Node> {
    let value = proptest::collection::vec(any::<u8>(), 0..60);
    proptest::collection::btree_map(a_key(), value, 1..60).prop_map(|pairs| encode(0, &pairs))
}

fn inner_nodes() -> impl Strategy<Value = Node> {
    let counter = prop_oneof![1..200_u64, Just(u64::MAX), any::<u64>()];
    let value = (any::<[u8; 32]>(), counter, any::<u64>(), 0..9_u64).prop_map(
        |(id, entries, bytes, inodes)| {
            let counters = Counters {
                entries: entries.max(1),
                bytes,
                inodes,
            };
            encode_child(NodeId::new(id), counters)
        },
    );
    (
        1..=LEVEL_MAX,
        proptest::collection::btree_map(a_key(), value, 1..40),
    )
        .prop_map(|(level, pairs)| encode(level, &pairs))
}

#[test]
fn golden_bytes_of_a_leaf() {
    // Two inodes and an entry, as an image has them.
    let mut record = vec![1, 1, 0];
    record.extend([0; 24]);
    record.extend(4096_u64.to_be_bytes());
    let inode = |number: u64| [&number.to_be_bytes()[..], &[0]].concat();
    let entry = [&1_u64.to_be_bytes()[..], &[1], &5_u64.to_be_bytes(), b"n"].concat();
    let pairs = BTreeMap::from([
        (inode(1), record.clone()),
        (entry, b"xyz".to_vec()),
        (inode(2), record.clone()),
    ]);
    let mut bytes = b"HFTN".to_vec();
    bytes.extend([1, 0]); // version, level
    bytes.extend([0, 3]); // entries in this node
    bytes.extend(3_u64.to_be_bytes()); // entries below
    bytes.extend(8192_u64.to_be_bytes()); // allocated bytes below
    bytes.extend(2_u64.to_be_bytes()); // inodes below
    bytes.extend([0, 9, 35]); // shared, rest of the key, value
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 1, 0]);
    bytes.extend(&record);
    bytes.extend([8, 10, 3]);
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0, 5, b'n']);
    bytes.extend(b"xyz");
    bytes.extend([7, 2, 35]);
    bytes.extend([2, 0]);
    bytes.extend(&record);
    bytes.extend([0, 32]); // offset of the restart point
    let node = encode(0, &pairs);
    assert_eq!(node.bytes(), &bytes);
    assert_eq!(
        node.id().to_string(),
        "649a219f9a0e85d8afc8ed8f3266154878cadfe9de561c28c5e47cf241553f78"
    );
    assert_eq!(content(&parse(&bytes).unwrap()), pairs);
}

#[test]
fn golden_bytes_of_an_inner_node() {
    let counters = |entries| Counters {
        entries,
        bytes: 300,
        inodes: 2,
    };
    let pairs = BTreeMap::from([
        (
            b"ab".to_vec(),
            encode_child(NodeId::new([7; 32]), counters(5)),
        ),
        (
            b"ac".to_vec(),
            encode_child(NodeId::new([8; 32]), counters(128)),
        ),
    ]);
    let mut bytes = b"HFTN".to_vec();
    bytes.extend([1, 1, 0, 2]);
    bytes.extend(133_u64.to_be_bytes());
    bytes.extend(600_u64.to_be_bytes());
    bytes.extend(4_u64.to_be_bytes());
    bytes.extend([0, 2, 36, b'a', b'b']);
    bytes.extend([7; 32]);
    bytes.extend([5, 0xac, 2, 2]); // 5, 300, 2
    bytes.extend([1, 1, 37, b'c']);
    bytes.extend([8; 32]);
    bytes.extend([0x80, 1, 0xac, 2, 2]); // 128, 300, 2
    bytes.extend([0, 32]);
    let node = encode(1, &pairs);
    assert_eq!(node.bytes(), &bytes);
    assert_eq!(
        node.id().to_string(),
        "4f89daeadcfcbe61a96e0ca5b17435762bf7b40488ea54c8ffdf36e228a3f63a"
    );
    assert_eq!(
        parse(&bytes).unwrap().children(),
        [NodeId::new([7; 32]), NodeId::new([8; 32])]
    );
}

#[test]
fn what_is_not_canonical_is_refused() {
    let pairs = (0..40_u32)
        .map(|number| ([&[9; 8][..], &number.to_be_bytes()].concat(), vec![1, 2]))
        .collect();
    let good = encode(0, &pairs).bytes().to_vec();
    parse(&good).unwrap();
    let refused = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        let error = parse(&bytes).unwrap_err().to_string();
        assert!(error.contains(what), "{error} is not {what}");
    };
    refused("not a tree node", &|bytes| bytes[0] = b'X');
    refused("version 2", &|bytes| bytes[4] = 2);
    refused("level", &|bytes| bytes[5] = LEVEL_MAX + 1);
    refused("no entries", &|bytes| bytes[7] = 0);
    refused("beyond the last", &|bytes| bytes[7] = 39);
    refused("out of bounds", &|bytes| bytes[7] = 41);
    refused("counters", &|bytes| bytes[15] += 1);
    refused("counters", &|bytes| bytes[23] += 1);
    refused("counters", &|bytes| bytes[31] += 1);
    refused("too long", &|bytes| bytes.resize(NODE_BYTES_MAX + 1, 0));
    refused("restart point", &|bytes| *bytes.last_mut().unwrap() += 1);
    refused("", &|bytes| bytes.push(0));
    refused("", &|bytes| bytes.truncate(bytes.len() - 1));
    refused("too short", &|bytes| bytes.truncate(31));
    refused("too short", &|bytes| bytes.clear());
    // The second entry: shares 11 bytes, has 1 more, and a value of 2.
    let second = HEADER_BYTES + 3 + 12 + 2;
    assert_eq!(good[second..second + 4], [11, 1, 2, 1]);
    refused("front-coded", &|bytes| {
        // The same key, sharing one byte less than it could.
        bytes.splice(second..second + 4, [10, 2, 2, 0, 1]);
    });
    refused("front-coded", &|bytes| bytes[second + 3] = 0);
    refused("front-coded", &|bytes| bytes[second] = 13);
    refused("", &|bytes| {
        drop(bytes.splice(second..second + 1, [0x8b, 0]));
    });
    refused("child", &|bytes| bytes[5] = 1);
}

#[test]
fn an_entry_of_the_largest_size_fits_after_the_largest_rest() {
    let mut builder = NodeBuilder::new(0);
    let mut number = 0_u32;
    while builder.len() < NODE_BYTES_MAX - ENTRY_BYTES_MAX {
        builder.push(&number.to_be_bytes(), &[], Counters::default());
        number += 1;
    }
    let last = builder.len();
    builder.push(
        &[0xff; KEY_BYTES_MAX],
        &[1; VALUE_BYTES_MAX],
        Counters::default(),
    );
    assert!(builder.len() - last <= ENTRY_BYTES_MAX);
    // The node had grown over the mark by one small entry, which is where it would have ended.
    assert!(builder.len() <= NODE_BYTES_MAX + 16, "{}", builder.len());
}

proptest! {
    #[test]
    fn nodes_round_trip(node in prop_oneof![leaves(), inner_nodes()]) {
        let parsed = parse(node.bytes()).unwrap();
        prop_assert_eq!(parsed.counters(), node.counters());
        prop_assert_eq!(content(&parsed), content(&node));
        check_canonical(node.bytes());
    }

    /// A changed byte, a cut, an insertion: refused, or the one encoding of something else.
    #[test]
    fn mutated_bytes_are_refused_or_canonical(
        node in prop_oneof![leaves(), inner_nodes()],
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..5), 1..4),
    ) {
        let mut bytes = node.bytes().to_vec();
        for (at, byte, what) in changes {
            if bytes.is_empty() {
                continue;
            }
            let at = at.index(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => bytes[at] = bytes[at].wrapping_add(1),
                2 => bytes.insert(at, byte),
                3 => drop(bytes.remove(at)),
                _ => bytes.truncate(at),
            }
            check_canonical(&bytes);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_canonical(
        level in 0..3_u8,
        count in 0..5_u8,
        rest in proptest::collection::vec(prop_oneof![0..4_u8, any::<u8>()], 0..120),
    ) {
        let mut bytes = vec![b'H', b'F', b'T', b'N', 1, level, 0, count];
        bytes.extend(rest);
        check_canonical(&bytes);
    }

    #[test]
    fn searching_is_like_in_a_map(node in leaves(), key in a_key()) {
        let model = content(&node);
        for key in model.keys().chain([&key]) {
            let at = Position::seek(&node, key);
            let wanted = model.range(key.clone()..).next();
            prop_assert_eq!(at.key(), wanted.map(|(key, _)| key.as_slice()));
            let value = node.value(key);
            prop_assert_eq!(value.as_deref(), model.get(key).map(Vec::as_slice));
            let covering = Position::covering(&node, key);
            let wanted = model.range(..=key.clone()).next_back().or(model.iter().next());
            prop_assert_eq!(covering.key(), wanted.map(|(key, _)| key.as_slice()));
            prop_assert_eq!(model.keys().nth(covering.index()).map(Vec::as_slice), covering.key());
        }
    }
}
