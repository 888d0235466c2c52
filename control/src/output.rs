//! What commands print: results on standard output, failures on standard error.

use std::io::Write;

use serde::Serialize;

use crate::failure::Failure;

/// Prints lines of text. A reader that went away is no failure.
pub(crate) fn text(text: &str) {
    write(&mut std::io::stdout().lock(), text);
}

/// Prints one line of JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let line = serde_json::to_string(value)
        .map_err(|error| Failure::error(format_args!("print the result: {error}")))?;
    text(&line);
    Ok(())
}

/// Prints why a command failed.
pub(crate) fn failure(failure: &Failure, json: bool) {
    let line = if json {
        let code = failure.exit_code();
        serde_json::json!({ "error": failure.message, "exit_code": code }).to_string()
    } else {
        format!("holdfast: {failure}")
    };
    write(&mut std::io::stderr().lock(), &line);
}

/// Prints a note that is no result.
pub(crate) fn note(line: &str) {
    write(&mut std::io::stderr().lock(), line);
}

fn write(to: &mut impl Write, text: &str) {
    let written = to
        .write_all(text.as_bytes())
        .and_then(|()| to.write_all(b"\n"))
        .and_then(|()| to.flush());
    if let Err(error) = written {
        tracing::debug!(%error, "print");
    }
}

/// Prints a table with a heading, columns as wide as they need to be.
pub(crate) fn table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) {
    let mut widths = heading.map(str::len);
    for row in rows {
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
    for row in rows {
        lines.push(line(row.each_ref().map(String::as_str)));
    }
    text(&lines.join("\n"));
}
