//! Archives that nobody should send.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;

use crate::commands::{NOT_FOUND, USAGE, killed_is_sound, sessions, started, text};
use crate::support::{fails, json};
use crate::tar::{directory, file, header, import_members, long_name, tar};
use crate::tree::noise;
use serde_json::Value;

/// A name, an archive, and what is said of it.
type Hostile = (&'static str, Vec<u8>, Vec<&'static str>);

/// An archive that is none because of its members.
fn members(name: &'static str, members: &[Vec<u8>], said: &[&'static str]) -> Hostile {
    (name, tar(members), said.to_vec())
}

/// A member that nothing is wrong with.
fn ok() -> Vec<u8> {
    file(b"ok", b"fine")
}

/// Another, of which something is stored before the next member is seen.
fn big() -> Vec<u8> {
    file(b"big", &noise())
}

/// Archives with members that cannot be.
fn hostile_members() -> Vec<Hostile> {
    vec![
        members(
            "up",
            &[big(), file(b"a/../../b", b"x")],
            &["a/../../b", "'..'"],
        ),
        members(
            "absolute",
            &[ok(), file(b"/etc/passwd", b"x")],
            &["/etc/passwd", "-P"],
        ),
        members(
            "link out",
            &[ok(), header(b"l", b'1', 0, b"../../etc/passwd")],
            &["hard link", "out of the tree"],
        ),
        members(
            "link to nothing",
            &[header(b"l", b'1', 0, b"none")],
            &["\"l\"", "not there before"],
        ),
        members(
            "link to a directory",
            &[directory(b"d/"), header(b"l", b'1', 0, b"d")],
            &["a directory"],
        ),
        members("twice", &[ok(), file(b"./ok", b"other")], &["ok", "twice"]),
        members(
            "file for directory",
            &[ok(), file(b"ok/below", b"x")],
            &["\"ok\"", "directory is needed"],
        ),
        members(
            "through a link",
            &[header(b"l", b'2', 0, b"/tmp"), file(b"l/x", b"x")],
            &["\"l\"", "directory is needed"],
        ),
        members(
            "directory for file",
            &[directory(b"d/"), file(b"d", b"x")],
            &["\"d\"", "directory is there"],
        ),
        members(
            "directory over file",
            &[ok(), directory(b"ok/")],
            &["\"ok\"", "directory is needed"],
        ),
        members(
            "long name",
            &[long_name(&[b'n'; 256]), file(b"n", b"x")],
            &["256 bytes", "255"],
        ),
        members(
            "long path",
            &[long_name(&b"d/".repeat(40_000)), file(b"n", b"x")],
            &["65536"],
        ),
        members("root as file", &[file(b".", b"x")], &["root of the tree"]),
    ]
}

/// Archives that are none.
fn hostile_bytes() -> Vec<Hostile> {
    let cut = |bytes: Vec<u8>, length: usize| bytes[..length].to_vec();
    let wrong_sum = {
        let mut bytes = tar(&[ok(), ok()]);
        bytes[1024 + 10] ^= 1;
        bytes
    };
    vec![
        (
            "cut in content",
            cut(tar(&[big()]), 100_000),
            vec!["cut off", "big"],
        ),
        (
            "cut in header",
            cut(tar(&[ok(), ok()]), 1024 + 100),
            vec!["cut off"],
        ),
        (
            "cut before the end",
            cut(tar(&[ok()]), 1024),
            vec!["cut off"],
        ),
        ("empty", Vec::new(), vec!["cut off"]),
        (
            "no archive",
            b"#!/bin/sh\n".repeat(100),
            vec!["no tar archive"],
        ),
        ("wrong sum", wrong_sum, vec!["after \"ok\"", "checksum"]),
        (
            "more after the end",
            [tar(&[ok()]), tar(&[ok()])].concat(),
            vec!["after its end"],
        ),
        members("unknown kind", &[header(b"v", b'V', 0, b"")], &["'V'"]),
        members(
            "empty link",
            &[header(b"l", b'2', 0, b"")],
            &["symbolic link"],
        ),
    ]
}

/// Archives that are sound, but not packed as they should be.
fn hostile_packing() -> Vec<Vec<u8>> {
    let whole = tar(&[file(b"packed", &noise()[..50_000])]);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&whole).unwrap();
    let gzip = encoder.finish().unwrap();
    let zstd = zstd::encode_all(&whole[..], 0).unwrap();
    let mut all = vec![
        b"\x1f\x8b\x08\0\0\0\0\0\0\x03junk".to_vec(),
        b"\x28\xb5\x2f\xfdjunkjunk".to_vec(),
    ];
    for packed in [gzip, zstd] {
        all.push(packed[..packed.len() - 4].to_vec());
        all.push(packed[..packed.len() / 2].to_vec());
        all.push([&packed[..], b"rubbish behind its end"].concat());
    }
    all
}

#[test]
fn hostile_archives_leave_nothing() {
    let (place, dir, server) = started();
    let good = place.path().join("good.tar");
    let made = import_members(&dir, &good, &[file(b"good", b"good")]);
    for (name, bytes, parts) in [hostile_members(), hostile_bytes()].concat() {
        let bad = place.path().join("bad.tar");
        fs::write(&bad, bytes).unwrap();
        fails(&["import", text(&bad)], &dir, USAGE, &parts);
        assert_eq!(json(&["show"], &dir)["id"], made["commit"]["id"], "{name}");
        assert_eq!(sessions(&dir), 1, "{name}");
    }
    // What a failed import stored is collected: by this collection, or by one that the server made of itself.
    let collected = json(&["gc"], &dir);
    assert_eq!(collected["live_chunks"], 1, "{collected}");
    let token = server.text("api_token");
    let (_, all) = server.call("GET", "/v1/gc", Some(&token), b"");
    let dead = |run: &Value| run["dead_chunks"].as_u64().unwrap_or(0);
    let found: u64 = all["items"].as_array().unwrap().iter().map(dead).sum();
    assert!(found > 0, "{all}");
    // Damaged packing is noticed before the server sees an end.
    for (number, bytes) in hostile_packing().iter().enumerate() {
        let bad = place.path().join(format!("bad.tar.{number}"));
        fs::write(&bad, bytes).unwrap();
        let parts = [
            "nothing was imported",
            "cut off or damaged",
            "fetch it again",
        ];
        fails(&["import", text(&bad)], &dir, USAGE, &parts);
    }
    fails(&["import", "/no/such"], &dir, NOT_FOUND, &["/no/such"]);
    fails(
        &["import", text(&good), "--workspace", "none"],
        &dir,
        NOT_FOUND,
        &["none"],
    );
    fails(
        &["import", text(&good), "--branch", "a b"],
        &dir,
        USAGE,
        &["branch"],
    );
    let message = "x".repeat(40_000);
    fails(
        &["import", text(&good), "-m", &message, "--branch", "long"],
        &dir,
        USAGE,
        &["message", "32 KiB"],
    );
    fails(
        &["export", "none", text(&place.path().join("x"))],
        &dir,
        NOT_FOUND,
        &["none"],
    );
    assert_eq!(json(&["show"], &dir)["id"], made["commit"]["id"]);
    killed_is_sound(server, &dir);
}

#[test]
fn who_sends_much_hears_why_it_is_refused() {
    let (place, dir, server) = started();
    let bad = place.path().join("bad.tar");
    let archive = File::create(&bad).unwrap();
    archive
        .write_all_at(&tar(&[file(b"a/../b", b"x")]), 0)
        .unwrap();
    archive.set_len(256 << 20).unwrap();
    fails(&["import", text(&bad)], &dir, USAGE, &["a/../b", "'..'"]);
    drop(server);
}
