//! A whole gateway whose clients ask for more than it may hold.

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    use base::{Clock, Rng, SystemClock, Tasks, TenantId};
    use chunkstore::memory::MemoryStore;
    use metadata::kv::memory::MemoryKv;

    use metadata::store::{NewWorkspace, OpenSession, Store};
    use nfs_gateway::{Engines, Gateway, GatewayOptions, ServerLimits};
    use nfs3_client::Nfs3ConnectionBuilder;
    use nfs3_client::tokio::TokioConnector;
    use nfs3_types::nfs3::{
        CREATE3args, Nfs3Option, WRITE3args, createhow3, diropargs3, filename3, sattr3, stable_how,
    };
    use nfs3_types::xdr_codec::Opaque;
    use tokio::net::TcpListener;

    const MEBIBYTE: usize = 1 << 20;
    const BUDGET: usize = 8 * MEBIBYTE;
    /// READs of each connection: more than sockets take the replies of.
    const CALLS: u32 = 16;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A gateway on memory, and the path of a mount.
    async fn serve(tasks: &Tasks) -> (Arc<Gateway>, SocketAddr, String) {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let rng = Arc::new(Rng::seeded(1));
        let kv = Arc::new(MemoryKv::new(Arc::clone(&clock)));
        let engines = Engines {
            kv: kv.clone(),
            chunks: Arc::new(MemoryStore::new()),
            clock: Arc::clone(&clock),
            rng: Arc::clone(&rng),
        };
        let store = Store::open(kv, clock, rng).await.unwrap();
        let new = NewWorkspace {
            name: "w".into(),
            root: (0o777, 0, 0),
        };
        let tenant = TenantId::DEFAULT;
        store.create_workspace(tenant, new).await.unwrap();
        let open = OpenSession::new("w");
        let opened = store.open_session(tenant, open).await.unwrap();
        let options = GatewayOptions {
            limits: ServerLimits {
                process_bytes_max: BUDGET,
                ..ServerLimits::default()
            },
            ..GatewayOptions::default()
        };
        let gateway = Gateway::new(options, engines, store).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Arc::clone(&gateway);
        tasks.spawn(async move { serving.serve(listener).await });
        (gateway, address, format!("/{}", opened.ticket))
    }

    /// A READ of the first mebibyte, as one record.
    fn read_call(xid: u32, handle: &[u8]) -> Vec<u8> {
        let mut call = Vec::new();
        let words = [xid, 0, 2, 100_003, 3, 6, 0, 0, 0, 0];
        for word in words {
            call.extend(word.to_be_bytes());
        }
        call.extend(u32::try_from(handle.len()).unwrap().to_be_bytes());
        call.extend(handle);
        call.resize(call.len().next_multiple_of(4), 0);
        call.extend(0_u64.to_be_bytes());
        call.extend(u32::try_from(MEBIBYTE).unwrap().to_be_bytes());
        let mark = 0x8000_0000 | u32::try_from(call.len()).unwrap();
        [&mark.to_be_bytes()[..], &call].concat()
    }

    /// Reads a reply; gives its length.
    fn reply(stream: &mut TcpStream) -> usize {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).unwrap();
        let length = usize::try_from(u32::from_be_bytes(mark) & 0x7fff_ffff).unwrap();
        stream.read_exact(&mut vec![0; length]).unwrap();
        length
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_big_reads_at_once_stay_within_the_budget() {
        let tasks = Tasks::new();
        let (gateway, address, path) = serve(&tasks).await;
        let mut mount = Nfs3ConnectionBuilder::new(TokioConnector, "127.0.0.1", &path)
            .connect_from_privileged_port(false)
            .mount_port(address.port())
            .nfs3_port(address.port())
            .mount()
            .await
            .unwrap();
        let args = CREATE3args {
            where_: diropargs3 {
                dir: mount.root_nfs_fh3(),
                name: filename3(Opaque::borrowed(b"f")),
            },
            how: createhow3::GUARDED(sattr3::default()),
        };
        let made = mount.create(&args).await.unwrap().unwrap();
        let Nfs3Option::Some(file) = made.obj else {
            panic!("no handle");
        };
        let data = vec![7; MEBIBYTE];
        let args = WRITE3args {
            file: file.clone(),
            offset: 0,
            count: u32::try_from(data.len()).unwrap(),
            stable: stable_how::FILE_SYNC,
            data: Opaque::borrowed(&data),
        };
        mount.write(&args).await.unwrap().unwrap();

        let streams: Vec<TcpStream> = (0..24)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                for xid in 0..CALLS {
                    stream.write_all(&read_call(xid, &file.data.0)).unwrap();
                }
                stream
            })
            .collect();
        let held = || gateway.transport().held_bytes.value();
        let clock = SystemClock::new();
        let mut most = 0;
        for _ in 0..100 {
            most = most.max(held());
            clock.sleep(Duration::from_millis(5)).await;
        }
        // Each of two threads may take a call before it sees the other's.
        let bound = BUDGET + 3 * MEBIBYTE;
        assert!((BUDGET / 2..bound).contains(&most), "{most} bytes held");
        // Now everybody takes what they asked for.
        let readers: Vec<_> = streams
            .into_iter()
            .map(|mut stream| {
                let named = std::thread::Builder::new().name("reader".into());
                let reader = named.spawn(move || {
                    for _ in 0..CALLS {
                        assert!(reply(&mut stream) > MEBIBYTE);
                    }
                });
                reader.unwrap()
            })
            .collect();
        while !readers.iter().all(std::thread::JoinHandle::is_finished) {
            most = most.max(held());
            clock.sleep(Duration::from_millis(1)).await;
        }
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(most < bound, "{most} bytes held");
        gateway.shutdown().await;
        tasks.join().await;
    }
}
