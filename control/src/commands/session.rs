//! `holdfast session`.

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
    parse_session,
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
    match parse_session(session) {
        Some(_) => Ok(format!("/v1/sessions/{session}{rest}")),
        None => Err(Failure::new(FailureKind::Usage, no_session(session))),
    }
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
    let client = client(&args.server)?;
    let path = path_of(&args.session, "")?;
    let mut done = Closed {
        closed: args.session.clone(),
        published: None,
        kept: None,
    };
    let mut lines = Vec::new();
    if args.publish {
        let publish = Publish {
            about: args.about.try_into()?,
            branch: args.branch,
            policy: args.policy,
            dry_run: false,
        };
        let published: Published = client.post(&path_of(&args.session, "/publish")?, &publish)?;
        lines.extend(history::published_lines(&published));
        done.published = Some(published);
    } else if args.keep {
        let session: Session = client.get(&path)?;
        let about = Checkpoint::try_from(args.about)?;
        let made: Checkpointed = client.post(&path_of(&args.session, "/checkpoint")?, &about)?;
        let pin = AddPin {
            version: made.commit.id.clone(),
            note: format!("session {} when it was closed", args.session),
        };
        let workspace = escape(&session.workspace);
        client.post_for_nothing(&format!("/v1/workspaces/{workspace}/pins"), &pin)?;
        lines.push(format!(
            "commit {} has what it had, and is pinned",
            made.commit.id
        ));
        done.kept = Some(made.commit);
    } else if !args.about.message.is_empty() {
        let why = "a message is for a commit: add --publish or --keep";
        return Err(Failure::new(FailureKind::Usage, why));
    }
    client.delete(&path)?;
    if json {
        return output::json(&done);
    }
    lines.push(format!("session {} is closed", args.session));
    output::text(&lines.join("\n"))
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
    ];
    output::text(&lines.map(|line| line.trim_end().to_owned()).join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_type_stays_one_part_of_the_address() {
        let path = path_of("00ff", "/tickets").unwrap();
        assert_eq!(path, "/v1/sessions/00ff/tickets");
        for wrong in ["", "..", "../x?y", "+1", " 1", "00000000000000001"] {
            let refused = path_of(wrong, "").unwrap_err();
            assert_eq!(refused.kind, FailureKind::Usage, "{wrong}");
        }
        assert_eq!(escape("a&b ü"), "a%26b%20%C3%BC");
    }
}
