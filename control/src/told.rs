//! A server for tests of commands: it answers as it is told, and remembers what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::cli::ServerArgs;
use crate::client::Client;

/// A server that runs until it is asked what it heard.
#[derive(Debug)]
pub(crate) struct Told {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    hears: JoinHandle<Vec<String>>,
}

impl Told {
    /// Answers each call, `METHOD PATH`, and what it carries with a status and a body.
    pub(crate) fn new(
        mut answer: impl FnMut(&str, &str) -> (u16, String) + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::Builder::new().name("told".into());
        let hears = thread.spawn(move || {
            let mut heard = Vec::new();
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                heard.extend(one(stream.unwrap(), &mut answer));
            }
            heard
        });
        Self {
            address,
            is_over,
            hears: hears.unwrap(),
        }
    }

    pub(crate) fn client(&self) -> Client {
        let api = format!("http://{}", self.address);
        Client::find(Some(&api), Some("token"), Path::new("/none")).unwrap()
    }

    pub(crate) fn args(&self) -> ServerArgs {
        ServerArgs {
            data_dir: PathBuf::from("/none"),
            api: Some(format!("http://{}", self.address)),
            token: Some("token".into()),
        }
    }

    /// All calls, each with what it carried.
    pub(crate) fn heard(self) -> Vec<String> {
        self.is_over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        self.hears.join().unwrap()
    }
}

/// Answers one call, and closes the connection.
fn one(
    mut stream: TcpStream,
    answer: &mut impl FnMut(&str, &str) -> (u16, String),
) -> Option<String> {
    let mut from = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    let call = line.strip_suffix(" HTTP/1.1\r\n")?.to_owned();
    let mut length = 0;
    loop {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(said) = line.strip_prefix("content-length: ") {
            length = said.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).unwrap();
    let body = String::from_utf8(body).unwrap();
    let (status, answer) = answer(&call, &body);
    let length = answer.len();
    let head =
        format!("HTTP/1.1 {status} Told\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all((head + &answer).as_bytes()).unwrap();
    Some(format!("{call} {body}").trim_end().to_owned())
}
