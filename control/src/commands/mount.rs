//! `holdfast mount`.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use rustix::mount::MountFlags;

use super::client;
use super::served;
use super::session::{make_ticket, path_of, whole_id};
use crate::cli;
use crate::client::Client;
use crate::failure::{Failure, FailureKind};
use crate::output;
use crate::types::{Mount, OpenSession, OpenedSession};

/// Where the helper program is that `mount -t nfs` needs.
const HELPERS: [&str; 2] = ["/sbin/mount.nfs", "/usr/sbin/mount.nfs"];

pub(super) fn run(args: &cli::Mount, json: bool) -> Result<(), Failure> {
    if !args.print_only {
        check_can_mount(args)?;
    }
    let client = client(&args.server)?;
    let session = session(args, &client)?;
    let mut unused = args.workspace.as_ref().map(|_| String::new());
    let mounted = make_ticket(&client, &session, &args.grant).and_then(|mount| {
        unused.get_or_insert_with(|| format!("/tickets/{}", mount.ticket_id));
        mount_or_print(args, &session, &mount, json)
    });
    if let (Err(_), Some(unused)) = (&mounted, unused) {
        // Nobody knows of it. Whether that works changes nothing about the failure to tell.
        if let Ok(path) = path_of(&session, &unused) {
            drop(client.delete(&path));
        }
    }
    mounted?;
    tell(args, &session, json)
}

/// Refuses what cannot work, before anything is made for it.
fn check_can_mount(args: &cli::Mount) -> Result<(), Failure> {
    let shown = args.dir.display();
    match std::fs::metadata(&args.dir) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            let message = format!("{shown} is a file: name a directory to mount on");
            return Err(Failure::new(FailureKind::Conflict, message));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = format!("{shown} is not a directory: make it first");
            return Err(Failure::new(FailureKind::NotFound, message));
        }
        Err(error) => return Err(Failure::io(format_args!("look at {shown}"), &error)),
    }
    if uses_helper(args) && !rustix::process::geteuid().is_root() {
        let message = "mounting needs root: run this as root, or give --print-only and run as root \
                       what that prints";
        return Err(Failure::new(FailureKind::Denied, message));
    }
    Ok(())
}

/// Whether `mount` does it, rather than a system call.
fn uses_helper(args: &cli::Mount) -> bool {
    let has_helper = HELPERS.iter().any(|helper| Path::new(helper).exists());
    has_helper && !args.no_helper
}

/// The session to mount; one that is opened for it if a workspace is given.
fn session(args: &cli::Mount, client: &Client) -> Result<String, Failure> {
    if let Some(session) = &args.session {
        return whole_id(client, session);
    }
    if let Some(workspace) = &args.workspace {
        let open = OpenSession {
            workspace: workspace.clone(),
            ..OpenSession::default()
        };
        let opened: OpenedSession = client.post("/v1/sessions", &open)?;
        return Ok(opened.session.id);
    }
    served(client, None)
}

fn mount_or_print(
    args: &cli::Mount,
    session: &str,
    mount: &Mount,
    json: bool,
) -> Result<(), Failure> {
    if args.print_only {
        let (options, source) = (&mount.mount_command_options, &mount.mount_source);
        let dir = quote(&args.dir.to_string_lossy());
        let command = format!("mount -t nfs -o {options} {source} {dir}");
        if json {
            return output::json(&serde_json::json!({
                "session": session,
                "mount_command": command,
                "mount": mount,
            }));
        }
        return output::text(&command);
    }
    if uses_helper(args) {
        run_command(mount, &args.dir)?;
    } else {
        call_kernel(mount, &args.dir)?;
    }
    Ok(())
}

/// Says that it is mounted, which stays so if that cannot be said.
fn tell(args: &cli::Mount, session: &str, json: bool) -> Result<(), Failure> {
    if args.print_only {
        return Ok(());
    }
    if json {
        return output::json(&serde_json::json!({ "mounted": args.dir, "session": session }));
    }
    output::text(&format!(
        "session {session} is mounted on {}",
        args.dir.display()
    ))
}

/// `text` as one word of a shell's command line.
fn quote(text: &str) -> String {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-');
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn run_command(mount: &Mount, dir: &Path) -> Result<(), Failure> {
    let status = Command::new("mount")
        .args(["-t", "nfs", "-o", &mount.mount_command_options])
        .arg(&mount.mount_source)
        .arg(dir)
        .status()
        .map_err(|error| Failure::io("run mount", &error))?;
    match (status.success(), status.code(), status.signal()) {
        (true, ..) => Ok(()),
        // mount(8): 1 is wrong use or no permission.
        (_, Some(1), _) => Err(Failure::new(
            FailureKind::Denied,
            "mount refused, and says why above: it needs root, and the right to mount",
        )),
        (_, code, signal) => Err(Failure::error(format_args!(
            "mount failed (exit code {code:?}, signal {signal:?}): it says why above"
        ))),
    }
}

/// Mounts without the helper program.
fn call_kernel(mount: &Mount, dir: &Path) -> Result<(), Failure> {
    let data = std::ffi::CString::new(mount.mount_options.as_str())
        .map_err(|_| Failure::error("the server's mount options hold a NUL"))?;
    let flags = MountFlags::NOATIME;
    rustix::mount::mount(
        &*mount.mount_source,
        dir,
        "nfs",
        flags,
        Some(data.as_c_str()),
    )
    .map_err(|error| {
        let doing = format_args!(
            "mount on {}: the kernel needs NFSv3 and the caller to be root",
            dir.display()
        );
        Failure::io(doing, &error.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_one_word_of_a_shell() {
        assert_eq!(quote("/mnt/a-b_c.d"), "/mnt/a-b_c.d");
        assert_eq!(quote("/a b"), "'/a b'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
    }
}
