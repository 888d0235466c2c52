//! `holdfast import` and `export`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::partial::Partial;
use super::{client, escape};
use crate::cli_transfer::{ExportArgs, ImportArgs};
use crate::client::Client;
use crate::failure::{Failure, FailureKind};
use crate::files::{Options, Packed, Progress, Unpacked, pack, shown_bytes, unpack, unreadable};
use crate::history::{Checkpoint, short};
use crate::output;
use crate::tar::{self, Kind, Reader};
use crate::transfer::{Counts, Imported};

/// Bytes copied at a time.
const COPY_BYTES: usize = 256 * 1024;

/// How far back an archive of `zstd --long` may refer, as a power of two of bytes: as far as zstd does
/// at all. So much memory is needed to unpack it, if it is as long.
const ZSTD_WINDOW_LOG_MAX: u32 = 31;

/// How an archive is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    Gzip,
    Zstd,
}

pub(super) fn import(args: ImportArgs, json: bool) -> Result<(), Failure> {
    if args.git {
        return super::git::import(&args, json);
    }
    let about = Checkpoint::try_from(args.about)?;
    let about = serde_json::to_string(&about).unwrap_or_default();
    let call = format!(
        "/v1/workspaces/{}/import?branch={}&about_inside=true",
        escape(&args.workspace),
        escape(&args.branch)
    );
    let client = client(&args.server)?;
    let path = args.path;
    let is_dir = path.is_dir();
    if !is_dir && !is_standard(&path) {
        // Before anything is sent.
        open(&path)?;
    }
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let imported: Imported = client.upload(&call, move |to| {
        let mut progress = Progress::new("sent");
        begin(to, &about)?;
        let packed = if is_dir {
            pack(&path, to, &mut progress)?
        } else {
            send(&path, to, &mut progress)?;
            Packed::default()
        };
        // There is room for one.
        tell.try_send(packed)
            .map_err(|error| Failure::error(format_args!("tell what was sent: {error}")))
    })?;
    let packed = told.try_recv().unwrap_or_default();
    if packed.changed > 0 {
        output::note(&format!(
            "{} files were written to while they were read: the commit may have parts of both",
            packed.changed
        ));
    }
    if json {
        return output::json(&imported);
    }
    let id = &imported.commit.id;
    let branch = imported.branch.as_deref().unwrap_or_default();
    let mut lines = vec![if imported.is_new {
        format!("commit {id}\nbranch {branch} is at {}", short(id))
    } else {
        format!("branch {branch} has the very same already, at commit {id}")
    }];
    lines.push(counted(&imported.counts));
    if imported.counts.ignored > 0 {
        let ignored = imported.counts.ignored;
        lines.push(format!("{ignored} extended attributes were left out"));
    }
    output::text(&lines.join("\n"))
}

/// Sends what the commit is to say, at once: what comes after it may take its time.
pub(super) fn begin(to: &mut dyn Write, about: &str) -> Result<(), Failure> {
    put(to, &tar::about(about))?;
    on_its_way(to)
}

/// Sends what was put so far. Whoever sends next to nothing is given up by the server.
fn on_its_way(to: &mut dyn Write) -> Result<(), Failure> {
    let sent = to.flush();
    sent.map_err(|error| Failure::io("send the archive", &error))
}

/// Sends a part of an archive.
pub(super) fn put(to: &mut dyn Write, bytes: &[u8]) -> Result<(), Failure> {
    let sent = to.write_all(bytes);
    sent.map_err(|error| Failure::io("send the archive", &error))
}

pub(super) fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

fn counted(counts: &Counts) -> String {
    let some = |count: u64, one: &str, more: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {more}"),
    };
    let bytes = shown_bytes(counts.bytes);
    [
        format!("{} ({bytes})", some(counts.files, "file", "files")),
        some(counts.directories, "directory", "directories"),
        some(counts.symlinks, "symbolic link", "symbolic links"),
        some(counts.links, "further name", "further names"),
        some(counts.others, "other", "others"),
    ]
    .join(", ")
}

fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| Failure::io(format_args!("open {}", path.display()), &error))
}

/// Sends an archive, unpacked if it is packed.
fn send(path: &Path, to: &mut dyn Write, progress: &mut Progress) -> Result<(), Failure> {
    if is_standard(path) {
        return send_from(Box::new(std::io::stdin()), (path, true), to, progress);
    }
    send_from(Box::new(open(path)?), (path, false), to, progress)
}

/// If what is read comes slowly, each part is sent at once.
fn send_from(
    from: Box<dyn Read>,
    (path, is_slow): (&Path, bool),
    to: &mut dyn Write,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let failed = |error: &std::io::Error| {
        Failure::io(
            format_args!("read {}, of which nothing was imported", path.display()),
            error,
        )
    };
    let mut from = BufReader::with_capacity(COPY_BYTES, from);
    let begin = from.fill_buf().map_err(|error| failed(&error))?;
    let mut form = Form::Plain;
    let mut from: Box<dyn Read> = if begin.starts_with(&[0x1f, 0x8b]) {
        form = Form::Gzip;
        Box::new(flate2::bufread::MultiGzDecoder::new(from))
    } else if begin.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        form = Form::Zstd;
        let decoder = zstd::stream::read::Decoder::with_buffer(from);
        let mut decoder = decoder.map_err(|error| failed(&error))?;
        let bounded = decoder.window_log_max(ZSTD_WINDOW_LOG_MAX);
        bounded.map_err(|error| failed(&error))?;
        Box::new(decoder)
    } else {
        Box::new(from)
    };
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            // The system reads it well: it is not what it should be.
            Err(error) if form != Form::Plain && error.raw_os_error().is_none() => {
                return Err(damaged(path, form, &error));
            }
            Err(error) => return Err(failed(&error)),
        };
        put(to, buffer.get(..read).unwrap_or_default())?;
        if is_slow {
            on_its_way(to)?;
        }
        progress.add(read);
    }
}

/// What a packed archive that cannot be unpacked comes to.
fn damaged(path: &Path, form: Form, error: &std::io::Error) -> Failure {
    let form = if form == Form::Gzip { "gzip" } else { "zstd" };
    let message = format!(
        "{} is cut off or damaged, or has something behind its end that is no {form} ({error}), and \
         nothing was imported: make it anew, or fetch it again",
        path.display()
    );
    Failure::new(FailureKind::Usage, message)
}

/// Why the export that `call` asks for failed: if it only broke off, the server is asked whether it can
/// work at all.
pub(super) fn why_broken(client: &Client, call: &str, failure: Failure) -> Failure {
    if failure.kind != FailureKind::Retry {
        return failure;
    }
    let looked: Result<serde_json::Value, _> = client.get(&format!("{call}&check=true"));
    match looked {
        Err(cause) if cause.kind == FailureKind::Conflict => Failure::error(cause.message),
        Err(cause) if cause.kind == FailureKind::Error => cause,
        _ => failure,
    }
}

pub(super) fn export(args: ExportArgs, json: bool) -> Result<(), Failure> {
    if args.git {
        return super::git::export(&args, json);
    }
    let client = client(&args.server)?;
    let call = format!(
        "/v1/workspaces/{}/export?version={}",
        escape(&args.workspace),
        escape(&args.version)
    );
    let (dest, force) = (args.dest, args.force);
    let to_standard = is_standard(&dest);
    if to_standard && (json || std::io::stdout().is_terminal()) {
        let message = "an archive on standard output goes with no --json and to no terminal";
        return Err(Failure::new(FailureKind::Usage, message));
    }
    let target = Target::new(dest, force)?;
    let exported = client.download(&call, move |from, commit| {
        let unpacked = target.take(from, force)?;
        Ok((commit.unwrap_or_default(), unpacked))
    });
    let (commit, unpacked) = exported.map_err(|failure| why_broken(&client, &call, failure))?;
    let Some(unpacked) = unpacked else {
        // Who read it has enough.
        return Ok(());
    };
    let counts = counted(&unpacked.counts);
    if unpacked.owners_left > 0 {
        output::note(&format!(
            "{} of them belong to you now: only root can keep their owners",
            unpacked.owners_left
        ));
    }
    if to_standard {
        output::note(&format!("commit {commit}: {counts}"));
        return Ok(());
    }
    if json {
        return output::json(&serde_json::json!({
            "commit": commit,
            "counts": unpacked.counts,
            "owners_left": unpacked.owners_left,
        }));
    }
    output::text(&format!("commit {commit}\n{counts}"))
}

/// Ends of names of archives that are not written.
const OTHER_ENDS: [&[u8]; 24] = [
    b".tar.xz",
    b".txz",
    b".tar.bz2",
    b".tbz",
    b".tbz2",
    b".tar.lz4",
    b".tar.lz",
    b".tar.lzma",
    b".tlz",
    b".tar.lzo",
    b".tar.br",
    b".tar.z",
    b".taz",
    b".gz",
    b".zst",
    b".xz",
    b".bz2",
    b".zip",
    b".7z",
    b".rar",
    b".cpio",
    b".cpgz",
    b".jar",
    b".ar",
];

/// Where an export goes.
enum Target {
    Standard,
    Archive(PathBuf, Form),
    /// A directory that does not exist.
    New(PathBuf),
    /// One that does.
    Existing(PathBuf),
}

impl Target {
    fn new(dest: PathBuf, force: bool) -> Result<Self, Failure> {
        if is_standard(&dest) {
            return Ok(Self::Standard);
        }
        let in_the_way = |what: &str| {
            let message = format!("{} {what}; --force writes all the same", dest.display());
            Failure::new(FailureKind::Conflict, message)
        };
        let found = std::fs::symlink_metadata(&dest);
        let is_dir = dest.is_dir();
        let name = dest.file_name().map(OsStr::as_bytes).unwrap_or_default();
        let name = name.to_ascii_lowercase();
        let form = [
            (&b".tar"[..], Form::Plain),
            (b".tar.gz", Form::Gzip),
            (b".tgz", Form::Gzip),
            (b".tar.zst", Form::Zstd),
            (b".tzst", Form::Zstd),
        ];
        let form = form.iter().find(|(end, _)| name.ends_with(end));
        match (form, found) {
            (Some((_, form)), found) if !is_dir => {
                if found.is_ok() && !force {
                    return Err(in_the_way("exists"));
                }
                Ok(Self::Archive(dest, *form))
            }
            (_, Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
                if OTHER_ENDS.iter().any(|end| name.ends_with(end)) {
                    let message = format!(
                        "{} would be an archive of a kind that is not written: name it .tar, .tar.gz, \
                         .tgz, .tar.zst or .tzst, or make a directory of that name first",
                        dest.display()
                    );
                    return Err(Failure::new(FailureKind::Usage, message));
                }
                Ok(Self::New(dest))
            }
            (_, Err(error)) => Err(Failure::io(
                format_args!("look at {}", dest.display()),
                &error,
            )),
            (_, Ok(_)) if !is_dir => {
                let message = format!("{} is no directory: name another", dest.display());
                Err(Failure::new(FailureKind::Conflict, message))
            }
            (_, Ok(_)) => {
                let read = std::fs::read_dir(&dest);
                let mut read = read.map_err(|error| {
                    Failure::io(format_args!("read directory {}", dest.display()), &error)
                })?;
                if read.next().is_some() && !force {
                    return Err(in_the_way("is not empty"));
                }
                Ok(Self::Existing(dest))
            }
        }
    }

    /// `None` if whoever reads standard output went away.
    fn take(self, from: &mut dyn Read, force: bool) -> Result<Option<Unpacked>, Failure> {
        let mut progress = Progress::new("received");
        let options = Options { force };
        let unpacked = match self {
            Self::Standard => {
                let mut to = Piped {
                    to: std::io::stdout().lock(),
                    is_gone: false,
                };
                let copied = copy(from, &mut to, &mut progress);
                if to.is_gone {
                    return Ok(None);
                }
                copied
            }
            Self::Existing(dest) => {
                unpack(from, &dest, options, &mut progress).map_err(|failure| {
                    let dest = dest.display();
                    let message = format!("{failure}; what is in {dest} is not complete");
                    Failure::new(failure.kind, message)
                })
            }
            Self::New(dest) => {
                let partial = Partial::directory(&dest, 0o700)?;
                let unpacked = unpack(from, partial.path(), options, &mut progress);
                partial.end(unpacked, false)
            }
            Self::Archive(dest, form) => {
                let (partial, file) = Partial::file(&dest)?;
                let copied = archive(from, (partial.path(), file), form, &mut progress);
                partial.end(copied, force)
            }
        };
        unpacked.map(Some)
    }
}

/// Knows whether whoever reads it went away.
struct Piped<W> {
    to: W,
    is_gone: bool,
}

impl<W> Piped<W> {
    fn look<T>(&mut self, done: std::io::Result<T>) -> std::io::Result<T> {
        if let Err(error) = &done {
            self.is_gone |= error.kind() == std::io::ErrorKind::BrokenPipe;
        }
        done
    }
}

impl<W: Write> Write for Piped<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let done = self.to.write(bytes);
        self.look(done)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let done = self.to.flush();
        self.look(done)
    }
}

fn archive(
    from: &mut dyn Read,
    (path, file): (&Path, File),
    form: Form,
    progress: &mut Progress,
) -> Result<Unpacked, Failure> {
    let failed =
        |error: std::io::Error| Failure::io(format_args!("write {}", path.display()), &error);
    let (file, copied) = match form {
        Form::Plain => {
            let mut to = file;
            let copied = copy(from, &mut to, progress)?;
            (to, copied)
        }
        Form::Gzip => {
            let mut to = flate2::write::GzEncoder::new(file, flate2::Compression::default());
            let copied = copy(from, &mut to, progress)?;
            (to.finish().map_err(failed)?, copied)
        }
        Form::Zstd => {
            let mut to = zstd::stream::write::Encoder::new(file, 0).map_err(failed)?;
            let copied = copy(from, &mut to, progress)?;
            (to.finish().map_err(failed)?, copied)
        }
    };
    file.sync_all().map_err(failed)?;
    Ok(copied)
}

/// Copies an archive, and makes sure that it is whole.
pub(super) fn copy(
    from: &mut dyn Read,
    to: &mut dyn Write,
    progress: &mut Progress,
) -> Result<Unpacked, Failure> {
    let tee = Tee {
        from,
        to,
        progress,
        failure: None,
    };
    let mut reader = Reader::new(tee);
    let mut unpacked = Unpacked::default();
    let counts = &mut unpacked.counts;
    loop {
        let member = match reader.next() {
            Ok(Some(member)) => member,
            Ok(None) => break,
            Err(error) => {
                let failure = reader.into_inner().failure;
                return Err(failure.unwrap_or_else(|| unreadable(&error)));
            }
        };
        match member.kind {
            Kind::File { .. } => {
                counts.files += 1;
                loop {
                    match reader.data() {
                        Ok(Some((_, data))) => {
                            counts.bytes += u64::try_from(data.len()).unwrap_or(0);
                        }
                        Ok(None) => break,
                        Err(error) => {
                            let failure = reader.into_inner().failure;
                            return Err(failure.unwrap_or_else(|| unreadable(&error)));
                        }
                    }
                }
            }
            Kind::Kept => counts.kept += 1,
            Kind::Directory => counts.directories += 1,
            Kind::Symlink(_) => counts.symlinks += 1,
            Kind::Link(_) => counts.links += 1,
            Kind::CharDevice(_) | Kind::BlockDevice(_) | Kind::Fifo | Kind::Socket => {
                counts.others += 1;
            }
        }
    }
    let tee = reader.into_inner();
    let flushed = tee.to.flush();
    flushed.map_err(|error| Failure::io("write the archive", &error))?;
    Ok(unpacked)
}

/// Copies all that is read through it.
struct Tee<'a> {
    from: &'a mut dyn Read,
    to: &'a mut dyn Write,
    progress: &'a mut Progress,
    failure: Option<Failure>,
}

impl Read for Tee<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(buffer)?;
        let part = buffer.get(..read).unwrap_or_default();
        if let Err(error) = self.to.write_all(part) {
            self.failure = Some(Failure::io("write the archive", &error));
            return Err(error);
        }
        self.progress.add(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// What was written, and how much of it has been sent.
    #[derive(Default)]
    struct Sent {
        bytes: Vec<u8>,
        flushed: usize,
    }

    impl Write for Sent {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            self.flushed = self.bytes.len();
            Ok(())
        }
    }

    fn sent_from(from: impl Read + 'static, to: &mut dyn Write) -> Result<(), Failure> {
        let mut progress = Progress::new("sent");
        send_from(Box::new(from), (Path::new("-"), true), to, &mut progress)
    }

    /// Bug: what came slowly was collected, and the server gave up the sender that sent nothing.
    #[test]
    fn what_comes_slowly_is_not_held_back() {
        struct Shared(Rc<RefCell<Sent>>);
        impl Write for Shared {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.borrow_mut().write(bytes)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                self.0.borrow_mut().flush()
            }
        }
        /// Gives parts, and looks whether those before have been sent.
        struct Slow(Rc<RefCell<Sent>>, usize);
        impl Read for Slow {
            fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
                let sent = self.0.borrow();
                assert_eq!(sent.flushed, sent.bytes.len());
                assert_eq!(sent.flushed, 1000 * self.1);
                if self.1 == 5 {
                    return Ok(0);
                }
                self.1 += 1;
                to[..1000].fill(7);
                Ok(1000)
            }
        }
        let sent = Rc::new(RefCell::new(Sent::default()));
        sent_from(Slow(Rc::clone(&sent), 0), &mut Shared(Rc::clone(&sent))).unwrap();
        assert_eq!(sent.borrow().bytes, [7; 5000]);
        let mut first = Sent::default();
        begin(&mut first, "{}").unwrap();
        assert!(first.flushed == first.bytes.len() && first.flushed > 0);
    }

    /// Bug: an archive of `zstd --long=31` was called damaged.
    #[test]
    fn archives_that_refer_far_back_are_taken() {
        let mut packed = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00];
        // A window of 2^31 bytes; one block, the last, of five bytes as they are.
        packed.push((31 - 10) << 3);
        packed.extend([5 << 3 | 1, 0, 0]);
        packed.extend(b"bytes");
        let mut sent = Sent::default();
        sent_from(std::io::Cursor::new(packed.clone()), &mut sent).unwrap();
        assert_eq!(sent.bytes, b"bytes");
        packed.pop();
        let failure = sent_from(std::io::Cursor::new(packed), &mut sent).unwrap_err();
        assert!(failure.message.contains("cut off"), "{failure}");
    }
}
