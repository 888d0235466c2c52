//! An NFS client over TCP that asks again as the kernel's does: the same bytes, at the next gateway, until
//! there is a reply. One call at a time.

use std::io::{Cursor, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Clock, SystemClock};
use nfs3_types::mount::{dirpath, mountres3};
use nfs3_types::nfs3::nfs_fh3;
use nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

pub(crate) const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const VERSION: u32 = 3;
const MNT: u32 = 1;

/// Set in a record's length: it is whole.
const WHOLE: u32 = 1 << 31;

/// Longest reply, in bytes.
const REPLY_BYTES_MAX: u32 = 2 << 20;

/// For how long a reply is waited for before the call goes elsewhere. Longer than gateways have a call wait.
const REPLY_PATIENCE: Duration = Duration::from_secs(30);

/// For how long a connection may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// Pause before a call goes to the next gateway.
const PAUSE: Duration = Duration::from_millis(20);

/// For how long a call is asked again before the gateways are said to hang.
const HANG: Duration = Duration::from_secs(120);

/// Where gateways are. Those of gateways that are started anew are put in place of the old ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places(Arc<Mutex<Vec<SocketAddr>>>);

impl Places {
    pub(crate) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self(Arc::new(Mutex::new(addresses)))
    }

    pub(crate) fn put(&self, at: usize, address: SocketAddr) {
        self.0.lock().unwrap()[at] = address;
    }

    fn of(&self, turn: usize) -> SocketAddr {
        let places = self.0.lock().unwrap();
        places[turn % places.len()]
    }
}

/// A call: program, procedure, and what follows the header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Procedure {
    pub(crate) program: u32,
    pub(crate) number: u32,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Asking {
    places: Places,
    turn: usize,
    stream: Option<TcpStream>,
    xid: u32,
    clock: SystemClock,
    /// How often a call was asked again.
    pub(crate) again: u64,
    /// Copies of calls that got no reply before their connections were closed.
    pub(crate) unanswered: u64,
}

impl Asking {
    /// A client that asks the gateway at `turn` first.
    pub(crate) fn new(places: &Places, turn: usize) -> Self {
        let random = base::Rng::system().unwrap().u64();
        Self {
            places: places.clone(),
            turn,
            stream: None,
            xid: u32::try_from(random >> 32).unwrap(),
            clock: SystemClock::new(),
            again: 0,
            unanswered: 0,
        }
    }

    /// Its connection, which stays open when this is gone.
    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream.unwrap()
    }

    /// The root behind a path.
    pub(crate) fn mount(&mut self, path: &str) -> nfs_fh3 {
        let mnt = Procedure {
            program: MOUNT,
            number: MNT,
        };
        match self.call(mnt, &dirpath(Opaque::borrowed(path.as_bytes()))) {
            mountres3::Ok(found) => nfs_fh3 {
                data: Opaque::owned(found.fhandle.0.as_ref().to_vec()),
            },
            mountres3::Err(status) => panic!("MNT answers {status}"),
        }
    }

    /// Makes a call of NFS: the results.
    pub(crate) fn nfs<R: Unpack>(&mut self, number: u32, args: &impl Pack) -> R {
        let program = NFS;
        self.call(Procedure { program, number }, args)
    }

    fn call<R: Unpack>(&mut self, procedure: Procedure, args: &impl Pack) -> R {
        let record = self.record(procedure, args);
        decode(&self.ask(&record))
    }

    /// Makes a call of NFS that is asked at two gateways at the same time, as by a client whose connection
    /// breaks and that asks again: both have the same reply.
    pub(crate) fn nfs_twice<R: Unpack>(&mut self, number: u32, args: &impl Pack) -> R {
        let record = self.record(
            Procedure {
                program: NFS,
                number,
            },
            args,
        );
        let first = self.places.of(self.turn);
        if let Ok(mut stream) = TcpStream::connect_timeout(&first, CONNECT_PATIENCE) {
            // Whoever is killed meanwhile was not asked.
            drop(stream.write_all(&record));
            self.turn += 1;
            self.stream = None;
            self.again += 1;
            let reply = self.ask(&record);
            stream.set_read_timeout(Some(REPLY_PATIENCE)).unwrap();
            match receive(&mut stream) {
                Ok(first) => assert!(
                    first == reply,
                    "copies have other replies: {first:?}, {reply:?}"
                ),
                Err(_) => self.unanswered += 1,
            }
            return decode(&reply);
        }
        decode(&self.ask(&record))
    }

    fn record(&mut self, procedure: Procedure, args: &impl Pack) -> Vec<u8> {
        self.xid = self.xid.wrapping_add(1);
        let mut record = vec![0; 4];
        let (call, rpc) = (0, 2);
        for word in [
            self.xid,
            call,
            rpc,
            procedure.program,
            VERSION,
            procedure.number,
        ] {
            record.extend(word.to_be_bytes());
        }
        let user = opaque_auth::auth_unix(&auth_unix::default());
        user.pack(&mut record).unwrap();
        opaque_auth::default().pack(&mut record).unwrap();
        args.pack(&mut record).unwrap();
        let len = u32::try_from(record.len() - 4).unwrap() | WHOLE;
        record[..4].copy_from_slice(&len.to_be_bytes());
        record
    }

    /// Sends a record until there is a reply, at one gateway after the other.
    fn ask(&mut self, record: &[u8]) -> Vec<u8> {
        let began = self.clock.monotonic();
        loop {
            match self.try_once(record) {
                Ok(reply) => return reply,
                Err(error) => {
                    let waited = self.clock.monotonic() - began;
                    assert!(waited < HANG, "no reply after {waited:?}: {error}");
                    self.stream = None;
                    self.turn += 1;
                    self.again += 1;
                    std::thread::park_timeout(PAUSE);
                }
            }
        }
    }

    fn try_once(&mut self, record: &[u8]) -> std::io::Result<Vec<u8>> {
        if self.stream.is_none() {
            let address = self.places.of(self.turn);
            let stream = TcpStream::connect_timeout(&address, CONNECT_PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(REPLY_PATIENCE))?;
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut().unwrap();
        stream.write_all(record)?;
        let reply = receive(stream)?;
        assert_eq!(reply[..4], record[4..8], "a reply to another call");
        Ok(reply)
    }
}

fn receive(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let len = u32::from_be_bytes(head);
    assert!(
        len & WHOLE != 0 && len & !WHOLE < REPLY_BYTES_MAX,
        "{len:#x}"
    );
    let mut reply = vec![0; usize::try_from(len & !WHOLE).unwrap()];
    stream.read_exact(&mut reply)?;
    Ok(reply)
}

/// What an accepted call came to.
fn decode<R: Unpack>(reply: &[u8]) -> R {
    // Number, that it is a reply and accepted, an empty verifier, success.
    assert_eq!(
        reply[4..24],
        [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    let mut rest = Cursor::new(&reply[24..]);
    let results = R::unpack(&mut rest).unwrap().0;
    assert_eq!(rest.position(), u64::try_from(reply.len() - 24).unwrap());
    results
}
