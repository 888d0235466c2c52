//! `holdfast mount`.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use rustix::mount::MountFlags;

use super::client;
use super::session::make_ticket;
use crate::cli;
use crate::failure::{Failure, FailureKind};
use crate::output;
use crate::types::Mount;

/// Where the helper program is that `mount -t nfs` needs.
const HELPERS: [&str; 2] = ["/sbin/mount.nfs", "/usr/sbin/mount.nfs"];

pub(super) fn run(args: &cli::Mount, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?;
    let session = match (&args.session, client.control()) {
        (Some(session), _) => session.clone(),
        (None, Some(control)) => control.session.clone().ok_or_else(no_session)?,
        (None, None) => return Err(no_session()),
    };
    let mount = make_ticket(&client, &session, &args.grant)?;
    let (options, source) = (&mount.mount_command_options, &mount.mount_source);
    let dir = args.dir.display();
    if args.print_only {
        let command = format!("mount -t nfs -o {options} {source} {dir}");
        if json {
            return output::json(&serde_json::json!({ "mount_command": command, "mount": mount }));
        }
        output::text(&command);
        return Ok(());
    }
    if !args.dir.is_dir() {
        let message = format!("{dir} is not a directory: make it first");
        return Err(Failure::new(FailureKind::NotFound, message));
    }
    let has_helper = HELPERS.iter().any(|helper| Path::new(helper).exists());
    if has_helper && !args.no_helper {
        run_command(&mount, &args.dir)?;
    } else {
        call_kernel(&mount, &args.dir)?;
    }
    if json {
        return output::json(&serde_json::json!({ "mounted": args.dir, "session": session }));
    }
    output::text(&format!("session {session} is mounted on {dir}"));
    Ok(())
}

fn no_session() -> Failure {
    let message = "which session? Give --session with an id of `holdfast session ls`";
    Failure::new(FailureKind::Usage, message)
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
            "mount refused: it needs to run as root",
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
