//! Keys of shared chunks: their places, staged bodies, packs.

use base::{ChunkId, DomainId, GatewayId, WorkspaceId};

use super::{Key, KeyError, decode, key, shared_table, table};
use crate::kv::KeyRange;
use crate::record::place::PackId;
use crate::tree::Root;

/// Where a chunk is.
#[must_use]
pub fn place(domain: DomainId, chunk: ChunkId) -> Vec<u8> {
    let domain = domain.raw().to_be_bytes();
    key(table::PLACE, &[&domain, chunk.as_bytes()])
}

/// The places of all chunks.
#[must_use]
pub fn places() -> KeyRange {
    KeyRange::prefix(&[table::PLACE])
}

/// A part of a staged chunk.
#[must_use]
pub fn body(domain: DomainId, chunk: ChunkId, piece: u8) -> Vec<u8> {
    let domain = domain.raw().to_be_bytes();
    key(table::BODY, &[&domain, chunk.as_bytes(), &[piece]])
}

/// All parts of a staged chunk.
#[must_use]
pub fn body_pieces(domain: DomainId, chunk: ChunkId) -> KeyRange {
    let domain = domain.raw().to_be_bytes();
    KeyRange::prefix(&key(table::BODY, &[&domain, chunk.as_bytes()]))
}

/// All parts of all staged chunks.
#[must_use]
pub fn bodies() -> KeyRange {
    KeyRange::prefix(&[table::BODY])
}

/// The chunk and the part in a key of [`bodies`].
///
/// # Errors
///
/// The key is of another table or damaged.
pub fn decode_body(key: &[u8]) -> Result<(DomainId, ChunkId, u8), KeyError> {
    match decode(key)? {
        Key::Body(domain, chunk, piece) => Ok((domain, chunk, piece)),
        _ => Err(KeyError::WrongTable),
    }
}

/// A pack.
#[must_use]
pub fn pack(pack: PackId) -> Vec<u8> {
    key(table::PACK, &[&pack.0])
}

/// All packs.
#[must_use]
pub fn packs() -> KeyRange {
    KeyRange::prefix(&[table::PACK])
}

/// The current cycle.
#[must_use]
pub fn cycle() -> Vec<u8> {
    key(table::SHARED, &[&[shared_table::CYCLE]])
}

/// What a gateway says of its holds.
#[must_use]
pub fn settled(gateway: GatewayId) -> Vec<u8> {
    let gateway = gateway.raw().to_be_bytes();
    key(table::SHARED, &[&[shared_table::SETTLED], &gateway])
}

/// What all gateways say of their holds.
#[must_use]
pub fn settled_all() -> KeyRange {
    KeyRange::prefix(&[table::SHARED, shared_table::SETTLED])
}

/// A root that was copied while references are read.
#[must_use]
pub fn grey(workspace: WorkspaceId, root: Root) -> Vec<u8> {
    let workspace = workspace.raw().to_be_bytes();
    let root = root.to_bytes();
    key(table::SHARED, &[&[shared_table::GREY], &workspace, &root])
}

/// All of them.
#[must_use]
pub fn greys() -> KeyRange {
    KeyRange::prefix(&[table::SHARED, shared_table::GREY])
}

/// The counter of staged bytes.
#[must_use]
pub fn staged_bytes() -> Vec<u8> {
    key(table::SHARED, &[&[shared_table::STAGED]])
}

/// Where the chunks of the installation are.
#[must_use]
pub fn tier() -> Vec<u8> {
    key(table::SHARED, &[&[shared_table::TIER]])
}
