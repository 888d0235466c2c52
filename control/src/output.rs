//! What commands print: results on standard output, failures on standard error.

use std::io::{ErrorKind, IsTerminal, Write};

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::failure::Failure;

/// Prints lines of text. A reader that went away is no failure. Control characters in them, which are
/// from names and messages that somebody else chose, do not reach the terminal.
///
/// # Errors
///
/// They cannot be written, as on a full disk: whoever wants them does not have them.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    print(&harmless(text))
}

/// Prints a report about history as [`text`] does: commits and conflicts in colours, where these are wanted.
///
/// # Errors
///
/// As [`text`].
pub(crate) fn report(text: &str) -> Result<(), Failure> {
    let text = harmless(text);
    if takes_colours(&std::io::stdout()) {
        return print(&painted(&text, style_in_report));
    }
    print(&text)
}

/// Whether a stream is a terminal that shows colours, or somebody wants them all the same. `NO_COLOR`,
/// `CLICOLOR`, `CLICOLOR_FORCE` and `TERM=dumb` count.
fn takes_colours<S: RawStream>(stream: &S) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}

/// Each line in its style.
fn painted(text: &str, style_of: fn(&str) -> Style) -> String {
    let paint = |line: &str| {
        let style = style_of(line);
        format!("{style}{line}{style:#}")
    };
    let lines: Vec<String> = text.split('\n').map(paint).collect();
    lines.join("\n")
}

fn style_in_report(line: &str) -> Style {
    let begins = |word: &str| line.starts_with(word);
    if begins("commit ") {
        return AnsiColor::Yellow.on_default();
    }
    if begins("conflict (") || begins("clash (") {
        return AnsiColor::Red.on_default();
    }
    Style::new()
}

fn style_in_patch(line: &str) -> Style {
    let begins = |word: &str| line.starts_with(word);
    // In front of each file. (A line `-- x` that was removed looks like one of these, too.)
    if [
        "diff ",
        "index ",
        "new ",
        "deleted ",
        "old ",
        "rename ",
        "similarity ",
        "--- ",
        "+++ ",
    ]
    .into_iter()
    .any(begins)
    {
        return Style::new().bold();
    }
    match line.chars().next() {
        Some('+') => AnsiColor::Green.on_default(),
        Some('-') => AnsiColor::Red.on_default(),
        Some('@') => AnsiColor::Cyan.on_default(),
        _ => Style::new(),
    }
}

fn print(text: &str) -> Result<(), Failure> {
    match write(&mut std::io::stdout().lock(), text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::io("it was done, but print the result", &error))
        }
        _ => Ok(()),
    }
}

/// Prints bytes as they are. `false` if the reader went away.
///
/// # Errors
///
/// As [`text`].
pub(crate) fn bytes(bytes: &[u8]) -> Result<bool, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::io("print the result", &error)),
    }
}

/// Prints text that programs read, too: as it is, unless it goes to a terminal.
///
/// # Errors
///
/// As [`text`].
pub(crate) fn patch(lines: &str) -> Result<(), Failure> {
    let out = std::io::stdout();
    let shown = lines.trim_end_matches('\n');
    if takes_colours(&out) {
        return print(&painted(&harmless(shown), style_in_patch));
    }
    if out.is_terminal() {
        return text(shown);
    }
    bytes(lines.as_bytes()).map(drop)
}

/// Prints one line of JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let line = serde_json::to_string(value)
        .map_err(|error| Failure::error(format_args!("print the result: {error}")))?;
    print(&line)
}

/// Prints why a command failed.
pub(crate) fn failure(failure: &Failure, json: bool) {
    let line = if json {
        let code = failure.exit_code();
        serde_json::json!({ "error": failure.message, "exit_code": code }).to_string()
    } else {
        format!(
            "{} {}",
            in_colour("holdfast:", AnsiColor::Red),
            harmless(&failure.to_string())
        )
    };
    drop(write(&mut std::io::stderr().lock(), &line));
}

/// Prints a note that is no result.
pub(crate) fn note(line: &str) {
    drop(write(&mut std::io::stderr().lock(), &harmless(line)));
}

/// Warns of something that does not stop a command.
pub(crate) fn warning(line: &str, json: bool) {
    if json {
        let line = serde_json::json!({ "warning": line }).to_string();
        drop(write(&mut std::io::stderr().lock(), &line));
    } else {
        let word = in_colour("warning:", AnsiColor::Yellow);
        let line = format!("{word} {}", harmless(line));
        drop(write(&mut std::io::stderr().lock(), &line));
    }
}

/// A word on standard error in a colour, where these are wanted.
fn in_colour(word: &str, colour: AnsiColor) -> String {
    if !takes_colours(&std::io::stderr()) {
        return word.to_owned();
    }
    let style = colour.on_default().bold();
    format!("{style}{word}{style:#}")
}

/// A line that shows what is done now, for terminals only. It is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct ProgressLine;

impl ProgressLine {
    /// Shows `line` in place of what was shown before.
    pub(crate) fn show(&self, line: &str) {
        progress_note(line);
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        progress_note("");
    }
}

/// Shows what is done now, for terminals only.
fn progress_note(line: &str) {
    if std::io::stderr().is_terminal() {
        progress(line);
    }
}

/// Shows how far something is, in place of what was shown before; only for terminals.
pub(crate) fn progress(line: &str) {
    let mut to = std::io::stderr().lock();
    // Back to the start of the line, and nothing of the old one stays.
    drop(write!(to, "\r\x1b[K{}", in_line(line)).and_then(|()| to.flush()));
}

/// A name or another value that stays on its line.
pub(crate) fn in_line(value: &str) -> String {
    escaped(value, |_| false)
}

/// Lines of text that a terminal takes for nothing else.
fn harmless(text: &str) -> String {
    escaped(text, |c| c == '\n' || c == '\t')
}

fn escaped(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && !keep(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

fn write(to: &mut impl Write, text: &str) -> std::io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.write_all(b"\n")?;
    to.flush()
}

/// Prints a table with a heading, columns as wide as they need to be.
///
/// # Errors
///
/// As [`text`].
pub(crate) fn table<const N: usize>(
    heading: [&str; N],
    rows: &[[String; N]],
) -> Result<(), Failure> {
    let mut widths = heading.map(str::len);
    let rows: Vec<[String; N]> = rows
        .iter()
        .map(|row| row.each_ref().map(|cell| in_line(cell)))
        .collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; N]| {
        let padded: Vec<String> = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(heading)];
    for row in &rows {
        lines.push(line(row.each_ref().map(String::as_str)));
    }
    text(&lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out() {
        let hostile = "a\u{1b}]0;title\u{7}\tb\r\nc\u{9b}2Jé";
        assert_eq!(
            harmless(hostile),
            "a\\u{1b}]0;title\\u{7}\tb\\r\nc\\u{9b}2Jé"
        );
        assert_eq!(
            in_line(hostile),
            "a\\u{1b}]0;title\\u{7}\\tb\\r\\nc\\u{9b}2Jé"
        );
    }
}
