//! The socket of the independent NFS client. Shared with the tests of the command line.
#![allow(dead_code, missing_docs, unreachable_pub)] // Shared by several test binaries.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use nfs3_client::io::{AsyncRead, AsyncWrite};
use nfs3_client::net::Connector;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// A socket whose end is an error. The client's own waits for more of a server that is gone, and
/// keeps the processor busy with that.
#[derive(Debug)]
pub struct Socket(TcpStream);

impl AsyncRead for Socket {
    async fn async_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => Ok(bytes),
        }
    }
}

impl AsyncWrite for Socket {
    async fn async_write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.write(buffer).await
    }
}

/// Makes such sockets.
#[derive(Debug)]
pub struct Sockets;

impl Connector for Sockets {
    type Connection = Socket;

    async fn connect(&self, address: SocketAddr) -> io::Result<Socket> {
        TcpStream::connect(address).await.map(Socket)
    }

    async fn connect_with_port(&self, address: SocketAddr, _port: u16) -> io::Result<Socket> {
        self.connect(address).await
    }
}

/// Makes them from an address of this machine.
#[derive(Debug)]
pub struct SocketsFrom(pub Ipv4Addr);

impl Connector for SocketsFrom {
    type Connection = Socket;

    async fn connect(&self, address: SocketAddr) -> io::Result<Socket> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.0, 0).into())?;
        socket.connect(address).await.map(Socket)
    }

    async fn connect_with_port(&self, address: SocketAddr, _port: u16) -> io::Result<Socket> {
        self.connect(address).await
    }
}
