//! `holdfast ls`, `cat`, `find` and `blame`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::pages::each_page;
use super::{client, escape};
use crate::cli_reading::{BlameArgs, CatArgs, FindArgs, Kind, LsArgs, Where};
use crate::client::{Client, Part};
use crate::failure::{Failure, FailureKind};
use crate::output;
use crate::reading::{
    Blame, BlamedLines, Entry, Source, Writer, escape_bytes, show_bytes, show_path,
};

/// Bytes of a file asked for at a time.
const PART_BYTES: u64 = 64 << 20;

/// How often in a row nothing may come.
const TRIES_MAX: u32 = 3;

/// Digits of a commit's id beside a line.
const ID_DIGITS: usize = 8;

/// A path of the API about a path of a version.
fn about(place: &Where, what: &str, version: &str, path: &OsStr) -> String {
    format!(
        "/v1/workspaces/{}/{what}?version={}&path={}",
        escape(&place.name),
        escape(version),
        escape_bytes(path.as_bytes())
    )
}

pub(super) fn ls(args: &LsArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.place.server)?;
    let query = about(&args.place, "entries", &args.version, &args.path);
    let mut entries = Vec::new();
    let more = each_page(&client, &query, args.limit, |page: Vec<Entry>| {
        entries.extend(page);
        Ok(true)
    })?;
    entries.sort_by_cached_key(Entry::exact_path);
    if json {
        output::json(&entries)?;
    } else if args.long {
        long(&entries)?;
    } else {
        let names: Vec<String> = entries.iter().map(name).collect();
        if !names.is_empty() {
            output::text(&names.join("\n"))?;
        }
    }
    if more {
        output::note(&format!("and more than {}: --limit lists them", args.limit));
    }
    Ok(())
}

/// The last part of a path.
fn name(entry: &Entry) -> String {
    let path = entry.exact_path();
    let name = path.rsplit(|byte| *byte == b'/').next();
    show_bytes(name.unwrap_or(&path))
}

fn long(entries: &[Entry]) -> Result<(), Failure> {
    let rows: Vec<[String; 5]> = entries
        .iter()
        .map(|entry| {
            let target = entry.target.as_ref().map(|target| {
                let target = show_path(target, entry.target_bytes.as_ref());
                format!(" -> {target}")
            });
            [
                mode(entry),
                format!("{}:{}", entry.uid, entry.gid),
                entry.size.to_string(),
                entry.modified.clone(),
                format!("{}{}", name(entry), target.unwrap_or_default()),
            ]
        })
        .collect();
    output::table(["MODE", "OWNER", "SIZE", "MODIFIED", "NAME"], &rows)
}

/// Kind and permissions in ten letters.
fn mode(entry: &Entry) -> String {
    let mut text = String::from(match entry.kind.as_str() {
        "directory" => 'd',
        "symlink" => 'l',
        "block-device" => 'b',
        "char-device" => 'c',
        "fifo" => 'p',
        "socket" => 's',
        _ => '-',
    });
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = entry.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (entry.mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

pub(super) fn find(args: &FindArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.place.server)?;
    let mut query = about(&args.place, "find", &args.version, &args.path);
    if let Some(name) = &args.name {
        query.push_str(&format!("&name={}", escape_bytes(name.as_bytes())));
    }
    if let Some(kind) = args.kind {
        let letter = match kind {
            Kind::F => 'f',
            Kind::D => 'd',
            Kind::L => 'l',
        };
        query.push_str(&format!("&type={letter}"));
    }
    let limit = args.limit.unwrap_or(usize::MAX);
    let mut is_first = true;
    let more = each_page(&client, &query, limit, |page: Vec<Entry>| {
        let mut out = Vec::new();
        for entry in &page {
            if json {
                out.extend_from_slice(if is_first { b"[" } else { b"," });
                out.extend(serde_json::to_vec(entry).unwrap_or_default());
            } else if args.null {
                out.extend(entry.exact_path());
                out.push(0);
            } else {
                let path = show_path(&entry.path, entry.path_bytes.as_ref());
                out.extend_from_slice(path.as_bytes());
                out.push(b'\n');
            }
            is_first = false;
        }
        output::bytes(&out)
    })?;
    if json {
        let end: &[u8] = if is_first { b"[]\n" } else { b"]\n" };
        output::bytes(end)?;
    }
    if more && args.limit.is_some() {
        output::note("and perhaps more: --limit tells them");
    }
    Ok(())
}

pub(super) fn cat(args: &CatArgs, json: bool) -> Result<(), Failure> {
    if json {
        let message = "cat prints a file as it is, and has no JSON";
        return Err(Failure::new(FailureKind::Usage, message));
    }
    let client = client(&args.place.server)?;
    let end = args.length.map(|length| args.offset.saturating_add(length));
    let (mut at, mut version, mut tries) = (args.offset, args.version.clone(), 0);
    while end.is_none_or(|end| at < end) {
        let path = about(&args.place, "content", &version, &args.path);
        let last = at.saturating_add(PART_BYTES).min(end.unwrap_or(u64::MAX));
        let mut is_read = true;
        let copied = client.copy(&path, at..last, |bytes| {
            is_read = output::bytes(bytes)?;
            Ok(is_read)
        })?;
        let Some(Part {
            commit,
            bytes,
            total,
            broken,
        }) = copied
        else {
            // There is nothing at that offset.
            return Ok(());
        };
        at += bytes;
        if !is_read || at >= total {
            return Ok(());
        }
        // The rest is of the same commit, whatever the version means by then.
        version = commit;
        tries = if bytes > 0 { 0 } else { tries + 1 };
        if let Some(error) = broken.filter(|_| tries >= TRIES_MAX) {
            let message = format!(
                "the content ends at byte {at} of {total}: {error}; go on there with --offset {at}"
            );
            return Err(Failure::new(FailureKind::Retry, message));
        }
    }
    Ok(())
}

pub(super) fn blame(args: &BlameArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.place.server)?;
    let query = about(&args.place, "blame", &args.version, &args.path);
    let blame: Blame = client.get(&query)?;
    if json {
        return output::json(&blame);
    }
    match &blame.lines {
        Some(lines) if !args.whole => by_lines(&client, args, &blame, lines),
        _ => whole(args, &blame),
    }
}

fn whole(args: &BlameArgs, blame: &Blame) -> Result<(), Failure> {
    let mut lines = Vec::new();
    for (what, writer) in [
        ("created", &blame.created),
        ("written", &blame.written),
        ("changed", &blame.changed),
    ] {
        let Some(writer) = writer else {
            lines.push(format!("{what}  by an older commit than were looked at"));
            continue;
        };
        lines.push(format!("{what}  {}  {}", writer.commit, writer.time));
        let session = writer.session.clone().unwrap_or_default();
        for (name, value) in [
            ("author", &writer.author),
            ("agent", &writer.agent),
            ("run", &writer.run),
            ("session", &session),
            ("model", &writer.model),
            ("call", &writer.tool_call),
            ("message", &writer.subject),
        ] {
            if !value.is_empty() {
                lines.push(format!("    {name:<7} {}", output::in_line(value)));
            }
        }
    }
    if let Some(why) = blame.no_lines.as_ref().filter(|_| !args.whole) {
        lines.push(format!("not told by lines: {why}"));
    }
    output::text(&lines.join("\n"))
}

fn by_lines(
    client: &Client,
    args: &BlameArgs,
    blame: &Blame,
    runs: &[BlamedLines],
) -> Result<(), Failure> {
    let path = about(&args.place, "content", &blame.version, &args.path);
    let mut content = Vec::new();
    let read = client.copy(&path, 0..u64::MAX, |bytes| {
        content.extend_from_slice(bytes);
        Ok(true)
    })?;
    if let Some(error) = read.and_then(|part| part.broken) {
        let message = format!("read the lines: {error}");
        return Err(Failure::new(FailureKind::Retry, message));
    }
    let heads = heads(blame);
    let digits = runs
        .last()
        .map_or(0, |last| (last.first + last.count).to_string().len());
    let mut texts = content.split_inclusive(|byte| *byte == b'\n');
    let mut out = Vec::new();
    for run in runs {
        let head = heads.get(run.source).map_or("", String::as_str);
        let edge = if run.edge { '^' } else { ' ' };
        for number in run.first..run.first + run.count {
            let text = texts.next().unwrap_or_default();
            let text = text.strip_suffix(b"\n").unwrap_or(text);
            let text = line(text);
            out.push(format!("{edge}{head} {number:digits$}) {text}"));
        }
    }
    if out.is_empty() {
        return Ok(());
    }
    output::text(&out.join("\n"))
}

/// A line of a file, with its tabs.
fn line(text: &[u8]) -> String {
    let parts: Vec<String> = text.split(|byte| *byte == b'\t').map(show_bytes).collect();
    parts.join("\t")
}

/// Who wrote the lines of each source, in columns.
fn heads(blame: &Blame) -> Vec<String> {
    let parts: Vec<[String; 3]> = blame
        .sources
        .iter()
        .map(|source| head(blame, source))
        .collect();
    let width = |at: usize| {
        let cells = parts.iter().filter_map(|part| part.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let (paths, names) = (width(0), width(1));
    let sources = blame.sources.iter().zip(&parts);
    let line = |(source, [path, name, time]): (&Source, &[String; 3])| {
        let id: String = source.writer.commit.chars().take(ID_DIGITS).collect();
        format!("{id}{path:paths$} ({name:names$} {time}")
    };
    sources.map(line).collect()
}

/// The path, if it is another one than that of the file; by whom; when.
fn head(blame: &Blame, source: &Source) -> [String; 3] {
    let writer: &Writer = &source.writer;
    let by = [&writer.agent, &writer.author, &writer.run];
    let by = by.into_iter().find(|by| !by.is_empty());
    let by = by.map_or_else(|| "-".to_owned(), |by| output::in_line(by));
    let is_elsewhere = (&source.path, &source.path_bytes) != (&blame.path, &blame.path_bytes);
    let path = match is_elsewhere {
        true => format!(" {}", show_path(&source.path, source.path_bytes.as_ref())),
        false => String::new(),
    };
    [path, by, writer.time.clone()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_shown_as_ls_does() {
        let entry = |kind: &str, mode| Entry {
            path: String::new(),
            path_bytes: None,
            kind: kind.into(),
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            used: 0,
            links: 1,
            modified: String::new(),
            inode: 2,
            target: None,
            target_bytes: None,
        };
        for (kind, bits, shown) in [
            ("file", 0o644, "-rw-r--r--"),
            ("directory", 0o1777, "drwxrwxrwt"),
            ("file", 0o6750, "-rwsr-s---"),
            ("symlink", 0o4600, "lrwS------"),
        ] {
            assert_eq!(mode(&entry(kind, bits)), shown);
        }
    }
}
