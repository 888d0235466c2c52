//! The MOUNT protocol: from a path to a root handle (RFC 1813, section 5).
//!
//! The path is `/<ticket>`, or `/<ticket>/<directory>`: a capability for one session. Nothing is
//! listed, whatever is asked: neither what can be mounted nor who has mounted what.

use std::sync::Arc;

use base::{Caller, InodeId, SessionId};
use bytes::Bytes;
use metadata::ops::{self, Context};
use metadata::session::OwnError;
use metadata::store::StoreError;
use metadata::{FsError, OpError};

use crate::connection::{Answer, CallGuard};
use crate::fleet::{Place, Route};
use crate::gateway::Gateway;
use crate::handle::SignedHandle;
use crate::procedures::FLAG_READ_ONLY;
use crate::session::Session;
use crate::wire::mount::{self, MountCall, MountError};
use crate::wire::procedure::MountProcedure;
use crate::wire::rpc::{self, Call, Refusal};

/// Most path components below a ticket.
const COMPONENTS_MAX: usize = 64;

/// What the client is told, and what the log says besides.
type Refused = (MountError, Option<String>);

/// What comes of a mount.
enum Mounted {
    /// The root handle.
    Here(SessionId, SignedHandle),
    /// Another gateway serves the session, and is asked.
    Elsewhere(Route),
}

impl Gateway {
    /// Answers a call of the MOUNT protocol.
    pub(crate) fn mount_call(
        self: &Arc<Self>,
        record: &Bytes,
        call: &Call<'_>,
        procedure: MountProcedure,
        guard: CallGuard,
    ) -> Option<Answer> {
        let xid = call.xid;
        let Ok(decoded) = MountCall::decode(procedure, call.args.clone()) else {
            return Some(guard.answer(rpc::refused(xid, Refusal::GarbageArguments)));
        };
        match decoded {
            MountCall::Null | MountCall::Umnt(_) | MountCall::Umntall => {
                Some(guard.answer(mount::done(xid)))
            }
            MountCall::Dump | MountCall::Export => Some(guard.answer(mount::empty_list(xid))),
            MountCall::Mnt(path) => {
                let gateway = Arc::clone(self);
                let (path, record) = (path.to_vec(), record.clone());
                self.tasks.spawn(async move {
                    gateway.mount(xid, &path, record, guard).await;
                });
                None
            }
        }
    }

    async fn mount(self: &Arc<Self>, xid: u32, path: &[u8], record: Bytes, mut guard: CallGuard) {
        let connection = Arc::clone(guard.connection());
        let peer = connection.peer();
        let balancer = connection.balancer().map(tracing::field::display);
        match self.root_handle(xid, path, connection.is_link()).await {
            Ok(Mounted::Here(session, handle)) => {
                self.counters.mounts.count();
                tracing::info!(%peer, balancer, %session, "mounted");
                guard.note_session(session);
                guard.send(mount::granted(xid, handle.wire()));
            }
            // It was passed on already. Who did that looks again.
            Ok(Mounted::Elsewhere(_)) if connection.is_link() => guard.close(),
            Ok(Mounted::Elsewhere(route)) => self.pass_on(&route, record, guard),
            Err((error, why)) => {
                self.counters.mounts_refused.count();
                tracing::info!(%peer, balancer, ?error, why, "mount refused");
                guard.send(mount::denied(xid, error));
            }
        }
    }

    async fn root_handle(
        self: &Arc<Self>,
        xid: u32,
        path: &[u8],
        is_passed_on: bool,
    ) -> Result<Mounted, Refused> {
        let mut components = path
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty());
        let ticket = components.next().ok_or((MountError::NotFound, None))?;
        let ticket = std::str::from_utf8(ticket).map_err(|_| (MountError::NotFound, None))?;
        let ticket = self.store.resolve_ticket(ticket, xid).await;
        let ticket = ticket.map_err(|error| {
            let status = match error {
                StoreError::NotFound { .. } => MountError::NotFound,
                StoreError::Unavailable(_) => MountError::ServerFault,
                StoreError::Corrupt { .. } => MountError::Io,
                _ => MountError::AccessDenied,
            };
            (status, Some(error.to_string()))
        })?;
        if is_passed_on {
            // What another gateway passes on it takes to be ours: a route of ours would be old.
            self.forget_route(ticket.session);
        }
        let place = self.place(ticket.session, false).await.map_err(|error| {
            let status = match error {
                OwnError::NotFound => MountError::NotFound,
                OwnError::Kv(_) | OwnError::Elsewhere(..) => MountError::ServerFault,
                OwnError::Record(_) => MountError::Io,
            };
            (status, Some(error.to_string()))
        })?;
        let session = match place {
            Place::Here(session) => session,
            Place::Elsewhere(route) => return Ok(Mounted::Elsewhere(route)),
        };
        let mut directory = InodeId::ROOT;
        let inside = ticket
            .directory
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty());
        for (depth, name) in inside.chain(components).enumerate() {
            if depth >= COMPONENTS_MAX || name == b".." {
                return Err((MountError::Invalid, None));
            }
            let found = session.find_directory(directory, name).await;
            directory = found.map_err(|error| (error, None))?;
        }
        let flags = if ticket.read_only { FLAG_READ_ONLY } else { 0 };
        let handle = session.view(flags).handle(directory);
        Ok(Mounted::Here(ticket.session, handle))
    }
}

impl Session {
    /// The directory `name` in `dir`, whatever its permissions: a ticket is a capability.
    async fn find_directory(
        self: &Arc<Self>,
        dir: InodeId,
        name: &[u8],
    ) -> Result<InodeId, MountError> {
        let caller = Caller::root();
        let found = self.peek_with(|image, now| {
            ops::lookup(
                image,
                Context {
                    caller: &caller,
                    now,
                },
                dir,
                name,
            )
        });
        match found.await.ok_or(MountError::ServerFault)? {
            Ok(found) if found.object.is_dir() => Ok(found.object.inode),
            Ok(_) => Err(MountError::NotDirectory),
            Err(OpError::Fs(FsError::NotFound | FsError::Stale)) => Err(MountError::NotFound),
            Err(OpError::Fs(FsError::NotDirectory)) => Err(MountError::NotDirectory),
            Err(OpError::Fs(FsError::NameTooLong)) => Err(MountError::NameTooLong),
            Err(OpError::Fs(FsError::Corrupt)) => Err(MountError::Io),
            Err(OpError::Fs(_) | OpError::Miss(_)) => Err(MountError::Invalid),
        }
    }
}
