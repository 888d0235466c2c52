//! Archives that are more than they seem.

use std::fs;

use crate::commands::{USAGE, export, import, killed_is_sound, started, text};
use crate::support::{fails, json};
use crate::tar::{directory, file, header, long_name, tar};

/// Sets the checksum of a header that was changed.
fn summed(mut block: Vec<u8>) -> Vec<u8> {
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

/// A number in base 256.
fn large(number: u64) -> [u8; 12] {
    let mut field = [0; 12];
    field[0] = 0x80;
    field[4..].copy_from_slice(&number.to_be_bytes());
    field
}

/// A header of a sparse file with one byte in front of each of some offsets.
fn sparse(name: &[u8], offsets: &[u64]) -> Vec<u8> {
    let mut block = header(name, b'S', offsets.len(), b"");
    for (number, offset) in offsets.iter().enumerate() {
        let at = 386 + 24 * number;
        block[at..at + 12].copy_from_slice(&large(offset - 1));
        block[at + 12..at + 24].copy_from_slice(&large(1));
    }
    block[483..495].copy_from_slice(&large(*offsets.last().unwrap()));
    summed(block)
}

#[test]
fn a_file_longer_than_any_is_refused_before_its_content() {
    let (place, dir, server) = started();
    let archive = place.path().join("a.tar");
    // What would come after this header is not waited for.
    fs::write(
        &archive,
        sparse(b"huge", &[1 << 50, 1 << 60, 1 << 61, 1 << 62]),
    )
    .unwrap();
    fails(
        &["import", text(&archive)],
        &dir,
        USAGE,
        &["huge", "a file here can have"],
    );
    // As long as one can be it is taken in.
    let mut long = sparse(b"long", &[5, 1 << 40, (1 << 49) - (128 << 10)]);
    long.extend(b"abc");
    long.resize(1024, 0);
    fs::write(&archive, tar(&[long])).unwrap();
    let made = import(&dir, &archive, &[]);
    assert_eq!(made["counts"]["bytes"], 3);
    killed_is_sound(server, &dir);
}

/// Files of this size live in their directory's records: more of them than one transaction takes.
#[test]
fn many_small_files_come_in() {
    let (place, dir, server) = started();
    let tree = place.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..4500 {
        fs::write(tree.join(format!("file {number}")), [b'x'; 2000]).unwrap();
    }
    let made = import(&dir, &tree, &[]);
    assert_eq!(made["counts"]["files"], 4500);
    let out = place.path().join("out");
    let told = export(&dir, "main", &out, &[]);
    assert_eq!(told["counts"]["bytes"], 4500 * 2000);
    killed_is_sound(server, &dir);
}

/// More directories for one path than one transaction takes.
#[test]
fn a_very_deep_path_comes_in() {
    let (place, dir, server) = started();
    let archive = place.path().join("a.tar");
    let path = |levels: usize| [b"a/".repeat(levels), b"f".to_vec()].concat();
    let deep = [long_name(&path(25_000)), file(b"", b"deep")].concat();
    fs::write(&archive, tar(&[deep])).unwrap();
    let made = import(&dir, &archive, &[]);
    assert_eq!(made["commit"]["inodes"], 25_001);
    let deeper = [long_name(&path(40_000)), file(b"", b"")].concat();
    fs::write(&archive, tar(&[deeper])).unwrap();
    let says = ["more than 65536 bytes", "shorten it"];
    fails(&["import", text(&archive)], &dir, USAGE, &says);
    killed_is_sound(server, &dir);
}

/// A header that tells what the commit is to say.
fn about(text: &str) -> Vec<u8> {
    let rest = format!(" HOLDFAST.about={text}\n");
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    let record = format!("{length}{rest}");
    let mut bytes = header(b"PaxHeaders/about", b'g', record.len(), b"");
    bytes.extend(record.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

#[test]
fn an_archive_does_not_say_who_imports_it() {
    let (place, dir, server) = started();
    let forged = about(r#"{"author":"mallory","message":"trust me"}"#);
    let members = [
        forged.clone(),
        directory(b"d/"),
        forged.clone(),
        file(b"d/f", b"x"),
    ];
    let archive = place.path().join("a.tar");
    fs::write(&archive, tar(&members)).unwrap();
    let made = import(&dir, &archive, &["--author", "alice"]);
    assert_eq!(made["commit"]["author"], "alice");
    assert_eq!(made["commit"]["message"], "");
    // It is no attribute of any file.
    assert_eq!(made["counts"]["ignored"], 0);
    let token = server.text("api_token");
    let send = |query: &str, author: &str| {
        let path = format!("/v1/workspaces/default/import?{query}");
        let (status, answer) = server.call("POST", &path, Some(&token), &tar(&members));
        assert_eq!(status, 201, "{answer}");
        assert_eq!(answer["commit"]["author"], author, "{query}");
    };
    send("branch=a", "");
    send("branch=b&about=%7B%22author%22:%22bob%22%7D", "bob");
    send("branch=c&about_inside=true", "mallory");
    let both = "/v1/workspaces/default/import?about=%7B%7D&about_inside=true";
    let (status, answer) = server.call("POST", both, Some(&token), &tar(&members));
    assert_eq!(status, 400, "{answer}");
    assert_eq!(json(&["show"], &dir)["author"], "alice");
    drop(server);
}
