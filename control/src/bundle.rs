//! A bundle: commits of a workspace and what names them, in one file. `docs/formats.md` has the format.
//!
//! A file is a magic and sections. Each section carries a hash of itself, and the last one of all that
//! is before it: so what is cut off or altered anywhere is noticed before anything of it is used.

use std::io::{ErrorKind, Read, Write};

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, FailureKind};

/// What a file begins with: a name and the version of the format.
const MAGIC: [u8; 5] = *b"HFBN\x01";

/// Longest section, in bytes, as it is stored. Pieces of archives are shorter.
const SECTION_BYTES_MAX: u64 = 4 << 20;

/// Bytes of an archive in one section, before they are compressed.
const PIECE_BYTES: usize = 1 << 20;

/// Bytes of a hash.
const HASH_BYTES: usize = 32;

/// How well pieces are compressed.
const LEVEL: i32 = 3;

const ABOUT: u8 = 1;
const COMMIT: u8 = 2;
const PIECE: u8 = 3;
const COMMIT_END: u8 = 4;
const REF: u8 = 5;
const END: u8 = 6;

/// Where a bundle is from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    /// The workspace's name.
    pub(crate) workspace: String,
    /// Commits that it builds on and does not have.
    pub(crate) needs: Vec<String>,
}

/// A commit in a bundle. Its ids are those where it was made first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Commit {
    pub(crate) id: String,
    /// What its archive leaves out is what the first one has.
    pub(crate) parents: Vec<String>,
    pub(crate) about: crate::history::Checkpoint,
}

/// A branch or a tag in a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ref {
    pub(crate) name: String,
    pub(crate) tag: bool,
    pub(crate) protected: bool,
    pub(crate) commit: String,
}

/// A section of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// The first.
    About(About),
    /// A commit begins; its archive follows. Its parents come before it.
    Commit(Box<Commit>),
    /// A part of a commit's archive.
    Piece(Vec<u8>),
    /// The archive is whole.
    CommitEnd,
    /// After all commits.
    Ref(Ref),
    /// The last.
    End,
}

/// Writes a bundle.
pub(crate) struct Writer<W> {
    to: W,
    all: blake3::Hasher,
    /// A part of an archive that is not written yet.
    piece: Vec<u8>,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(to: W) -> std::io::Result<Self> {
        let mut writer = Self {
            to,
            all: blake3::Hasher::new(),
            piece: Vec::new(),
        };
        writer.put(&MAGIC)?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.all.update(bytes);
        self.to.write_all(bytes)
    }

    fn section(&mut self, kind: u8, payload: &[u8]) -> std::io::Result<()> {
        let length = u64::try_from(payload.len()).unwrap_or(u64::MAX);
        let head = [&[kind][..], &length.to_be_bytes()].concat();
        let hash = section_hash(&head, payload);
        self.put(&head)?;
        self.put(payload)?;
        self.put(&hash)
    }

    fn json<T: Serialize>(&mut self, kind: u8, value: &T) -> std::io::Result<()> {
        let payload = serde_json::to_vec(value).map_err(std::io::Error::other)?;
        self.section(kind, &payload)
    }

    pub(crate) fn about(&mut self, about: &About) -> std::io::Result<()> {
        self.json(ABOUT, about)
    }

    /// Begins a commit. Its archive is then written to the writer itself.
    pub(crate) fn commit(&mut self, commit: &Commit) -> std::io::Result<()> {
        self.json(COMMIT, commit)
    }

    pub(crate) fn end_commit(&mut self) -> std::io::Result<()> {
        self.piece()?;
        self.section(COMMIT_END, &[])
    }

    pub(crate) fn reference(&mut self, reference: &Ref) -> std::io::Result<()> {
        self.json(REF, reference)
    }

    /// Ends the bundle; gives what it was written to.
    pub(crate) fn end(mut self) -> std::io::Result<W> {
        let hash = *self.all.finalize().as_bytes();
        self.section(END, &hash)?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn piece(&mut self) -> std::io::Result<()> {
        let piece = std::mem::take(&mut self.piece);
        if piece.is_empty() {
            return Ok(());
        }
        let packed = zstd::bulk::compress(&piece, LEVEL)?;
        self.section(PIECE, &packed)
    }
}

impl<W: Write> Write for Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let room = PIECE_BYTES - self.piece.len();
        let some = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.piece.extend_from_slice(some);
        if self.piece.len() >= PIECE_BYTES {
            self.piece()?;
        }
        Ok(some.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn section_hash(head: &[u8], payload: &[u8]) -> [u8; HASH_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(head);
    hasher.update(payload);
    *hasher.finalize().as_bytes()
}

/// Reads a bundle, and refuses it where it is not what was written.
pub(crate) struct Reader<R> {
    from: R,
    all: blake3::Hasher,
    before: Option<u8>,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(from: R) -> Result<Self, Failure> {
        let mut reader = Self {
            from,
            all: blake3::Hasher::new(),
            before: None,
        };
        let mut magic = [0; MAGIC.len()];
        reader.fill(&mut magic)?;
        if magic == MAGIC {
            return Ok(reader);
        }
        Err(if magic.starts_with(b"HFBN") {
            let version = magic.last().copied().unwrap_or_default();
            refused(format!(
                "this bundle is of version {version}, and this release reads version 1"
            ))
        } else {
            refused("this is no bundle")
        })
    }

    fn fill(&mut self, to: &mut [u8]) -> Result<(), Failure> {
        self.from
            .read_exact(to)
            .map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => refused("the bundle is cut off; copy it again"),
                _ => Failure::io("read the bundle", &error),
            })?;
        self.all.update(to);
        Ok(())
    }

    /// The next section; after [`Section::End`] there is nothing.
    pub(crate) fn next(&mut self) -> Result<Section, Failure> {
        let whole = *self.all.finalize().as_bytes();
        let mut head = [0; 9];
        self.fill(&mut head)?;
        let [kind, length @ ..] = head;
        let length = u64::from_be_bytes(length);
        if length > SECTION_BYTES_MAX {
            return Err(altered());
        }
        let mut payload = vec![0; usize::try_from(length).unwrap_or(0)];
        self.fill(&mut payload)?;
        let mut hash = [0; HASH_BYTES];
        self.fill(&mut hash)?;
        if hash != section_hash(&head, &payload) {
            return Err(altered());
        }
        let may_follow = match self.before.replace(kind) {
            None => kind == ABOUT,
            Some(COMMIT | PIECE) => matches!(kind, PIECE | COMMIT_END),
            Some(ABOUT | COMMIT_END) => matches!(kind, COMMIT | REF | END),
            Some(REF) => matches!(kind, REF | END),
            Some(_) => false,
        };
        if !may_follow {
            return Err(altered());
        }
        match kind {
            ABOUT => json(&payload).map(Section::About),
            COMMIT => json(&payload).map(|commit| Section::Commit(Box::new(commit))),
            PIECE => {
                let piece = zstd::bulk::decompress(&payload, PIECE_BYTES);
                piece.map(Section::Piece).map_err(|_| altered())
            }
            COMMIT_END if payload.is_empty() => Ok(Section::CommitEnd),
            REF => json(&payload).map(Section::Ref),
            END if payload == whole => {
                let mut rest = [0];
                match self.from.read(&mut rest) {
                    Ok(0) => Ok(Section::End),
                    _ => Err(refused(
                        "something comes after the end of the bundle; copy it again",
                    )),
                }
            }
            _ => Err(altered()),
        }
    }
}

fn json<T: serde::de::DeserializeOwned>(payload: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(payload).map_err(|_| altered())
}

fn altered() -> Failure {
    refused("the bundle is damaged or altered; copy it again")
}

fn refused(why: impl Into<String>) -> Failure {
    let why = why.into();
    Failure::new(
        FailureKind::Usage,
        format_args!("{why}. Nothing of it was taken in"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer
            .about(&About {
                workspace: "w".into(),
                needs: vec![],
            })
            .unwrap();
        writer
            .commit(&Commit {
                id: "1".into(),
                ..Commit::default()
            })
            .unwrap();
        writer.write_all(&[7; 1_500_000]).unwrap();
        writer.end_commit().unwrap();
        writer
            .reference(&Ref {
                name: "main".into(),
                commit: "1".into(),
                ..Ref::default()
            })
            .unwrap();
        writer.end().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Section>, Failure> {
        let mut reader = Reader::new(bytes)?;
        let mut sections = Vec::new();
        loop {
            sections.push(reader.next()?);
            if sections.last() == Some(&Section::End) {
                return Ok(sections);
            }
        }
    }

    #[test]
    fn golden_bytes() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer
            .about(&About {
                workspace: "w".into(),
                needs: vec![],
            })
            .unwrap();
        let bytes = writer.end().unwrap();
        let about = br#"{"workspace":"w","needs":[]}"#;
        let mut wanted = b"HFBN\x01\x01\0\0\0\0\0\0\0\x1c".to_vec();
        wanted.extend(about);
        let head = b"\x01\0\0\0\0\0\0\0\x1c";
        wanted.extend(blake3::hash(&[&head[..], about].concat()).as_bytes());
        let whole = *blake3::hash(&wanted).as_bytes();
        let end = [&b"\x06\0\0\0\0\0\0\0\x20"[..], &whole].concat();
        wanted.extend(&end);
        wanted.extend(blake3::hash(&end).as_bytes());
        assert_eq!(bytes, wanted);
    }

    #[test]
    fn what_is_written_is_read() {
        let sections = read(&bundle()).unwrap();
        let mut content: Vec<u8> = Vec::new();
        for section in &sections {
            if let Section::Piece(piece) = section {
                content.extend(piece);
            }
        }
        assert_eq!(content, [7; 1_500_000]);
        assert_eq!(sections.len(), 1 + 1 + 2 + 1 + 1 + 1);
    }

    #[test]
    fn no_byte_can_be_changed_or_left_out() {
        let bytes = bundle();
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 0x10;
            assert!(read(&altered).is_err(), "byte {at}");
            assert!(read(&bytes[..at]).is_err(), "{at} bytes");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert!(read(&longer).is_err());
        // Sections that are whole, and in another order.
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.reference(&Ref::default()).unwrap();
        assert!(read(&writer.end().unwrap()).is_err());
    }
}
