//! Gateways and client together: calls by the model's words, over the wire, in any weather.

use std::collections::VecDeque;
use std::time::Duration;

use base::InodeId;
use bytes::Bytes;
use metadata::ops::Context;
use nfs3_types::xdr_codec::Opaque;
use system_tests::subject::{Answer, Asks, Call, Op};

use crate::client::{Answered, Client, End, Mishap};
use crate::codec::{self, Handles, Listing, Reply};
use crate::gateways::{Gateways, Setting};
use crate::storm::Storm;

/// Connections of all clients.
pub(crate) const CONNECTIONS: usize = 6;

/// For how long calls wait before the storm ends.
const STORM_MAX: Duration = Duration::from_secs(90);

/// For how long they may wait then.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Longest wait without a look at the time.
const LOOK: Duration = Duration::from_secs(5);

/// Gateways and client.
pub(crate) struct Rig {
    pub(crate) gateways: Gateways,
    pub(crate) client: Client,
    /// Of each session.
    pub(crate) handles: Vec<Handles>,
    /// The session that calls are for.
    pub(crate) at: usize,
    pub(crate) storm: Storm,
    /// Calls that were answered.
    pub(crate) calls: u64,
    asks: u64,
}

impl Rig {
    /// Gateways that run, and a client that has mounted all sessions.
    pub(crate) fn new(setting: Setting, seed: u64) -> Self {
        let (places, sessions) = (setting.places, setting.sessions);
        let mut gateways = Gateways::new(setting, seed);
        for place in 0..places {
            gateways.start(place, 1000);
        }
        let mut client = Client::with_connections(CONNECTIONS, gateways.clock.clone(), seed);
        client.balance(gateways.addresses());
        let mut rig = Self {
            gateways,
            client,
            handles: (0..sessions).map(|_| Handles::default()).collect(),
            at: 0,
            storm: Storm::new(seed),
            calls: 0,
            asks: 0,
        };
        for session in 0..sessions {
            rig.at = session;
            rig.mount().unwrap();
        }
        rig.at = 0;
        rig
    }

    /// Sends records and waits for all replies, whatever happens meanwhile.
    pub(crate) fn exchange(&mut self, records: Vec<(u32, Bytes)>) -> Result<Vec<Bytes>, String> {
        let xids: Vec<u32> = records.iter().map(|(xid, _)| *xid).collect();
        for (xid, record) in records {
            self.client.send(xid, record);
        }
        self.wait()?;
        self.calls += u64::try_from(xids.len()).unwrap();
        let replies = xids.into_iter().map(|xid| self.client.take(xid));
        Ok(replies.map(|reply| reply.unwrap()).collect())
    }

    /// Sends an answered call again; returns the reply.
    pub(crate) fn copy(&mut self, answered: &Answered) -> Result<Bytes, String> {
        self.client.send_copy(answered);
        self.wait()?;
        self.client.take(answered.xid).ok_or("no reply".to_owned())
    }

    /// Waits until everything is answered.
    fn wait(&mut self) -> Result<(), String> {
        let began = self.gateways.now();
        loop {
            let now = self.pass_storm();
            if now > began + STORM_MAX && self.storm.blows() {
                self.storm.end(&mut self.gateways);
            }
            if now > began + STORM_MAX + WAIT_MAX {
                return Err("calls are not answered".to_owned());
            }
            let until = self.storm.next().unwrap_or(now + LOOK).min(now + LOOK);
            let wake = VecDeque::from([(until.saturating_sub(now), Mishap::Kill)]);
            match self.gateways.run(self.client.wait(wake)) {
                End::Answered => return Ok(()),
                End::Kill => {}
                End::Hangs => return Err("nothing is answered".to_owned()),
            }
        }
    }

    /// Does what the storm has for now; returns the time.
    fn pass_storm(&mut self) -> Duration {
        let session = self.gateways.sessions[self.at].id;
        self.storm
            .pass(&mut self.gateways, &mut self.client, session);
        self.gateways.now()
    }

    /// Lets time pass without calls.
    pub(crate) fn idle(&mut self, duration: Duration) {
        let until = self.gateways.now() + duration;
        loop {
            let now = self.pass_storm();
            if now >= until {
                return;
            }
            let next = self.storm.next().unwrap_or(until).min(until);
            let pause = next.saturating_sub(now).max(Duration::from_millis(1));
            self.gateways.sleep(pause.min(LOOK));
        }
    }

    /// Ends the storm, and waits until all is well.
    pub(crate) fn calm(&mut self) {
        self.storm.end(&mut self.gateways);
        while self.storm.next().is_some() {
            self.idle(Duration::from_millis(500));
        }
        self.idle(Duration::from_secs(6));
    }

    /// Makes calls at the same time.
    pub(crate) fn call_all(&mut self, calls: &[Call]) -> Result<Vec<Reply>, String> {
        let mut records = Vec::new();
        let mut listings = Vec::new();
        for call in calls {
            self.gateways.clock.set_wall(call.now);
            self.asks += 1;
            let listing = match self.asks.is_multiple_of(2) {
                true => Listing::Plain,
                false => Listing::Plus,
            };
            let xid = self.client.xid();
            let record = codec::encode(&self.handles[self.at], xid, call, listing);
            records.push((xid, record));
            listings.push(listing);
        }
        let sent = records.clone();
        let replies = self.exchange(records)?;
        let handles = &mut self.handles[self.at];
        let mut decoded = Vec::new();
        for (at, reply) in replies.into_iter().enumerate() {
            let (call, (xid, record)) = (&calls[at], &sent[at]);
            let result = codec::result(&reply);
            let read = codec::decode(handles, call, listings[at], result);
            let mut answered = Client::answered(*xid, record.clone(), reply);
            answered.tracked = codec::is_tracked(&call.op);
            answered.stored = codec::is_stored(&call.op, &read.answer);
            self.client.remember(answered);
            decoded.push(read);
        }
        let complaints = [&mut self.client.complaints, &mut handles.complaints];
        match complaints.into_iter().find_map(Vec::pop) {
            Some(complaint) => Err(complaint),
            None => Ok(decoded),
        }
    }

    /// Makes one call.
    pub(crate) fn call(&mut self, call: &Call) -> Result<Reply, String> {
        let mut replies = self.call_all(std::slice::from_ref(call))?;
        Ok(replies.remove(0))
    }

    /// Mounts the session, and learns its root.
    pub(crate) fn mount(&mut self) -> Result<(), String> {
        let xid = self.client.xid();
        let path = format!("/{}", self.gateways.sessions[self.at].ticket).into_bytes();
        let record = codec::mount(1, xid, &Opaque::owned(path));
        let reply = self.exchange(vec![(xid, record)])?;
        let result = codec::result(&reply[0]);
        let status = u32::from_be_bytes(*result.first_chunk().unwrap());
        if status != 0 {
            return Err(format!("MNT fails with {status}"));
        }
        let length = u32::from_be_bytes(result[4..8].try_into().unwrap());
        let handle = &result[8..8 + usize::try_from(length).unwrap()];
        self.handles[self.at].learn(InodeId::ROOT, handle);
        Ok(())
    }
}

impl Asks for Rig {
    fn ask(&mut self, cx: Context<'_>, op: Op) -> Answer {
        let call = Call {
            caller: cx.caller.clone(),
            now: cx.now,
            op,
        };
        self.call(&call).unwrap().answer
    }
}
