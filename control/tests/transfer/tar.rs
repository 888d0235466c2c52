//! Archives, byte by byte.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::commands::import;

/// A header of ustar.
pub(crate) fn header(name: &[u8], flag: u8, size: usize, target: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len().min(100)].copy_from_slice(&name[..name.len().min(100)]);
    block[100..107].copy_from_slice(b"0000644");
    block[108..115].copy_from_slice(b"0000000");
    block[116..123].copy_from_slice(b"0000000");
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[136..147].copy_from_slice(b"00000000001");
    block[156] = flag;
    block[157..157 + target.len()].copy_from_slice(target);
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

pub(crate) fn file(name: &[u8], content: &[u8]) -> Vec<u8> {
    let mut bytes = header(name, b'0', content.len(), b"");
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

pub(crate) fn tar(members: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = members.concat();
    bytes.extend([0; 1024]);
    bytes
}

pub(crate) fn long_name(name: &[u8]) -> Vec<u8> {
    let mut bytes = header(b"././@LongLink", b'L', name.len() + 1, b"");
    bytes.extend(name);
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// A header of a directory.
pub(crate) fn directory(name: &[u8]) -> Vec<u8> {
    header(name, b'5', 0, b"")
}

/// Makes an archive of that name and imports it.
pub(crate) fn import_members(dir: &Path, archive: &Path, members: &[Vec<u8>]) -> Value {
    fs::write(archive, tar(members)).unwrap();
    import(dir, archive, &[])
}
