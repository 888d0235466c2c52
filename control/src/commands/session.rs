//! `holdfast session`.

use metadata::store::{SESSION_DIGITS, names_a_session};
use serde::Serialize;

use super::pages::pages;
use super::{client, escape, history, outside, served};
use crate::cli::{ForkArgs, Grant, OpenArgs, SessionCommand, TicketArgs};
use crate::cli_history::CloseArgs;
use crate::client::Client;
use crate::failure::{Failure, FailureKind};
use crate::history::{Checkpoint, Checkpointed, Commit, Publish, Published};
use crate::keeping::AddPin;
use crate::output;
use crate::types::{
    CreateTicket, ForkSession, Mount, OpenSession, OpenedSession, Session, no_session,
};

pub(super) fn run(command: SessionCommand, json: bool) -> Result<(), Failure> {
    match command {
        SessionCommand::Open(args) => open(args, json),
        SessionCommand::Fork(args) => fork(args, json),
        SessionCommand::Checkpoint(args) => history::checkpoint(args, json),
        SessionCommand::Publish(args) => history::publish(args, json),
        SessionCommand::Restore(args) => outside::restore(args, json),
        SessionCommand::Sync(args) => outside::sync(args, json),
        SessionCommand::Changed(args) => outside::changed(args, json),
        SessionCommand::Ls { workspace, server } => {
            list(&client(&server)?, workspace.as_deref(), json)
        }
        SessionCommand::Show { session, server } => {
            let found: Session = client(&server)?.get(&path_of(&session, "")?)?;
            show(&found, json)
        }
        SessionCommand::Close(args) => close(args, json),
        SessionCommand::Ticket(args) => ticket(args, json),
    }
}

/// The path of a session in the API.
///
/// # Errors
///
/// What was typed is no session's id.
pub(super) fn path_of(session: &str, rest: &str) -> Result<String, Failure> {
    if names_a_session(session) {
        return Ok(format!("/v1/sessions/{session}{rest}"));
    }
    Err(Failure::new(FailureKind::Usage, no_session(session)))
}

/// The whole id of a session that is named by its first digits: for what is told, and for commands that
/// call more than once.
pub(super) fn whole_id(client: &Client, session: &str) -> Result<String, Failure> {
    let path = path_of(session, "")?;
    if session.len() == SESSION_DIGITS {
        return Ok(session.to_owned());
    }
    let found: Session = client.get(&path)?;
    Ok(found.id)
}

/// Asks for a ticket of a session.
pub(super) fn make_ticket(client: &Client, session: &str, grant: &Grant) -> Result<Mount, Failure> {
    let create = CreateTicket {
        read_only: grant.read_only,
        single_use: grant.single_use,
        shared: grant.shared,
        directory: grant.directory.clone(),
        ttl_seconds: grant.ttl.map(|ttl| ttl.0.as_secs()),
    };
    client.post(&path_of(session, "/tickets")?, &create)
}

/// What `session close` did.
#[derive(Debug, Serialize)]
struct Closed {
    closed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    published: Option<Published>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<Commit>,
}

/// Closes a session, when what it has was published or kept if that is asked for.
fn close(args: CloseArgs, json: bool) -> Result<(), Failure> {
    if !args.publish && !args.keep && !args.about.is_empty() {
        let why = "a message, --author, --model, --tool-call and --pair are for a commit: add \
                   --publish or --keep";
        return Err(Failure::new(FailureKind::Usage, why));
    }
    let about = Checkpoint::try_from(args.about)?;
    let client = client(&args.server)?;
    let session = whole_id(&client, &args.session)?;
    let path = path_of(&session, "")?;
    let mut done = Closed {
        closed: session.clone(),
        published: None,
        kept: None,
    };
    let mut lines = Vec::new();
    if args.publish {
        let publish = Publish {
            about,
            branch: args.branch,
            policy: args.policy,
            dry_run: false,
        };
        let published: Published = client.post(&path_of(&session, "/publish")?, &publish)?;
        lines.extend(history::published_lines(&published));
        done.published = Some(published);
    } else if args.keep {
        let kept = keep(&client, &session, &about)?;
        lines.push(format!("commit {} has what it had, and is pinned", kept.id));
        done.kept = Some(kept);
    }
    let deleted = client.delete(&path);
    deleted.map_err(|failure| after(failure, &lines))?;
    if json {
        return output::json(&done);
    }
    lines.push(format!("session {session} is closed"));
    output::text(&lines.join("\n"))
}

/// Makes a commit of what a session has, and pins it.
fn keep(client: &Client, session: &str, about: &Checkpoint) -> Result<Commit, Failure> {
    let found: Session = client.get(&path_of(session, "")?)?;
    let made: Checkpointed = client.post(&path_of(session, "/checkpoint")?, about)?;
    let pin = AddPin {
        version: made.commit.id.clone(),
        note: format!("session {session} when it was closed"),
    };
    let workspace = escape(&found.workspace);
    let pinned = client.post_for_nothing(&format!("/v1/workspaces/{workspace}/pins"), &pin);
    pinned.map_err(|failure| {
        let id = &made.commit.id;
        let line = format!("commit {id} has what it has, and may not be pinned");
        after(failure, &[line])
    })?;
    Ok(made.commit)
}

/// A failure that comes after something was done already.
fn after(failure: Failure, done: &[String]) -> Failure {
    if done.is_empty() {
        return failure;
    }
    let done = done.join("; ");
    let message = format!("{failure}; the session may still be open. Before that: {done}");
    Failure::new(failure.kind, message)
}

fn open(args: OpenArgs, json: bool) -> Result<(), Failure> {
    let open = OpenSession {
        workspace: args.workspace,
        read_only: args.read_only,
        identity: args.identity,
        agent: args.agent,
        run: args.run,
        ttl_seconds: args.ttl.map(|ttl| ttl.0.as_secs()),
        version: args.version,
        branch: args.branch,
    };
    let opened: OpenedSession = client(&args.server)?
        .keyed(args.repeat)
        .post("/v1/sessions", &open)?;
    tell_opened(&opened, json)
}

fn fork(args: ForkArgs, json: bool) -> Result<(), Failure> {
    let fork = ForkSession {
        read_only: args.read_only,
        identity: args.identity,
        agent: args.agent,
        run: args.run,
        ttl_seconds: args.ttl.map(|ttl| ttl.0.as_secs()),
    };
    let client = client(&args.server)?.keyed(args.repeat);
    let path = path_of(&served(&client, args.session)?, "/fork")?;
    let opened: OpenedSession = client.post(&path, &fork)?;
    tell_opened(&opened, json)
}

fn tell_opened(opened: &OpenedSession, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(opened);
    }
    let id = &opened.session.id;
    let command = &opened.mount.mount_command;
    output::text(&format!(
        "session {id} is open; mount it with:\n\n  {command}"
    ))
}

fn ticket(args: TicketArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?.keyed(args.repeat);
    let mount = make_ticket(&client, &args.session, &args.grant)?;
    if json {
        return output::json(&mount);
    }
    output::text(&mount.mount_command)
}

fn list(client: &Client, workspace: Option<&str>, json: bool) -> Result<(), Failure> {
    let mut query = "/v1/sessions".to_owned();
    if let Some(name) = workspace {
        query.push_str("?workspace=");
        query.push_str(&escape(name));
    }
    let all: Vec<Session> = pages(client, &query, usize::MAX)?;
    if json {
        return output::json(&all);
    }
    let rows: Vec<_> = all
        .into_iter()
        .map(|session| {
            [
                session.id,
                session.workspace,
                session.state,
                session.agent,
                session.used_bytes.to_string(),
                session.created,
            ]
        })
        .collect();
    output::table(
        ["SESSION", "WORKSPACE", "STATE", "AGENT", "BYTES", "CREATED"],
        &rows,
    )
}

fn show(session: &Session, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(session);
    }
    let access = if session.read_only {
        "read-only"
    } else {
        "read-write"
    };
    let expires = session.expires.as_deref().unwrap_or("never");
    let lines = [
        format!("session    {}", session.id),
        format!("workspace  {}", session.workspace),
        format!("state      {}", session.state),
        format!("access     {access}"),
        format!("identity   {}", session.identity),
        format!("commit     {}", session.commit.as_deref().unwrap_or("none")),
        format!("branch     {}", session.branch),
        format!("agent      {}", session.agent),
        format!("run        {}", session.run),
        format!("created    {}", session.created),
        format!("expires    {expires}"),
        format!("bytes      {}", session.used_bytes),
        format!("inodes     {}", session.inodes),
        format!("gateway    {}", output::in_line(&session.gateway)),
    ];
    output::text(&lines.map(|line| line.trim_end().to_owned()).join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::told::Told;
    use clap::Parser;

    fn close_args(server: &Told, more: &[&str]) -> CloseArgs {
        let args = [&["holdfast", "session", "close", "00000000000000ff"], more].concat();
        let cli = crate::cli::Cli::try_parse_from(args).unwrap();
        let crate::cli::Command::Session(SessionCommand::Close(mut args)) = cli.command else {
            panic!("another command");
        };
        args.server = server.args();
        args
    }

    #[test]
    fn what_was_done_before_a_failure_is_told() {
        let (id, workspace) = ("c".repeat(64), "w");
        let commit = serde_json::json!({
            "id": id, "parents": [], "time": "", "message": "", "author": "", "agent": "",
            "session": null, "run": "", "model": "", "tool_call": "", "pairs": {}, "tree": "",
            "used_bytes": 0, "inodes": 0, "conflicts": 0, "files": [0, 0, 0], "bytes": [0, 0, 0],
        });
        let published = serde_json::json!({
            "commit": commit, "branch": "main", "head": id, "outcome": "fast-forward",
            "conflicts": [], "operation": null,
        });
        let checkpoint = serde_json::json!({ "commit": commit, "is_new": true });
        let session = serde_json::json!({
            "id": "ff", "workspace": workspace, "state": "open", "read_only": false,
            "identity": "passthrough", "commit": null, "branch": "main", "agent": "", "run": "",
            "created": "", "expires": null, "used_bytes": 0, "inodes": 0,
        });
        for (how, refused, parts) in [
            (
                "--publish",
                "DELETE",
                &["branch main is at", "still be open"][..],
            ),
            (
                "--keep",
                "DELETE",
                &[id.as_str(), "and is pinned", "still be open"],
            ),
            (
                "--keep",
                "POST /v1/workspaces/w/pins",
                &[id.as_str(), "may not be pinned"],
            ),
        ] {
            let answers = [&session, &published, &checkpoint].map(ToString::to_string);
            let server = Told::new(move |call, _| match call {
                call if call.starts_with(refused) => (503, r#"{"detail":"not now"}"#.into()),
                call if call.starts_with("GET") => (200, answers[0].clone()),
                call if call.ends_with("/publish") => (200, answers[1].clone()),
                call if call.ends_with("/checkpoint") => (200, answers[2].clone()),
                _ => (204, String::new()),
            });
            let failure = close(close_args(&server, &[how]), false).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Retry, "{failure}");
            for part in parts {
                assert!(failure.message.contains(part), "{how}: {failure}");
            }
            drop(server.heard());
        }
    }

    #[test]
    fn what_a_commit_says_is_refused_without_one() {
        let server = Told::new(|_, _| (204, String::new()));
        for more in [
            &["-m", "text"][..],
            &["--author", "ann"],
            &["--model", "m"],
            &["--tool-call", "t"],
            &["--pair", "k=v"],
        ] {
            let refused = close(close_args(&server, more), false).unwrap_err();
            assert_eq!(refused.kind, FailureKind::Usage, "{more:?}");
            assert!(refused.message.contains("--publish or --keep"), "{refused}");
        }
        assert!(server.heard().is_empty());
    }

    #[test]
    fn what_people_type_stays_one_part_of_the_address() {
        let path = path_of("00ff", "/tickets").unwrap();
        assert_eq!(path, "/v1/sessions/00ff/tickets");
        for wrong in [
            "",
            "..",
            "../x?y",
            "+123",
            " 123",
            "0ff",
            "00000000000000001",
        ] {
            let refused = path_of(wrong, "").unwrap_err();
            assert_eq!(refused.kind, FailureKind::Usage, "{wrong}");
        }
        assert_eq!(escape("a&b ü"), "a%26b%20%C3%BC");
    }
}
