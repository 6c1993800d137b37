//! Without libfabric: the same double buffer over a socket, sendfile(2), and splice(2). The
//! receiver reads into one block, and drops it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use rustix::fs::sendfile;
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};

use crate::case::{Case, Way};
use crate::deadline::Deadline;
use crate::error::{Failure, fail};
use crate::host::cpu_seconds;
use crate::peer::answer;
use crate::ring;
use crate::sending::{Sent, timed};

/// How long the peer may be silent.
const SILENCE: Duration = Duration::from_secs(20);

fn prepared(socket: TcpStream) -> Result<TcpStream, Failure> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE))?;
    socket.set_write_timeout(Some(SILENCE))?;
    Ok(socket)
}

/// Sends the file, and waits for the receiver's word.
pub(crate) fn send(case: &Case, way: Way, to: SocketAddr, path: &Path) -> Result<Sent, Failure> {
    let memory = ring::memory(case)?;
    let (sent, ()) = timed(|| {
        let file = File::open(path)?;
        let mut socket = prepared(TcpStream::connect_timeout(&to, SILENCE)?)?;
        match way {
            Way::Sendfile => by_sendfile(case, &file, &socket)?,
            Way::Splice => by_splice(case, &file, &socket)?,
            _ => ring::double_buffered(case, &file, &memory, |block| Ok(socket.write_all(block)?))?,
        }
        Ok(socket.read_exact(&mut [0])?)
    })?;
    Ok(sent)
}

fn by_sendfile(case: &Case, file: &File, socket: &TcpStream) -> Result<(), Failure> {
    let mut offset = 0;
    while offset < case.size as u64 {
        let left = case.size - offset as usize;
        if sendfile(socket, file, Some(&mut offset), left)? == 0 {
            return fail("the file is shorter than it was");
        }
    }
    Ok(())
}

fn by_splice(case: &Case, file: &File, socket: &TcpStream) -> Result<(), Failure> {
    let (from, to) = pipe()?;
    // Where it may not be so large, it stays as it is.
    let _ = fcntl_setpipe_size(&to, case.block);
    let mut offset = 0;
    let flags = SpliceFlags::MOVE | SpliceFlags::MORE;
    while offset < case.size as u64 {
        let left = (case.size - offset as usize).min(case.block);
        let mut within = splice(file, Some(&mut offset), &to, None, left, flags)?;
        if within == 0 {
            return fail("the file is shorter than it was");
        }
        while within > 0 {
            within -= splice(&from, None, socket, None, within, flags)?;
        }
    }
    Ok(())
}

/// Receives so many bytes, drops them, and says so; processor seconds since the connection.
pub(crate) fn receive(case: &Case) -> Result<f64, Failure> {
    let ip: std::net::IpAddr = case.node.parse()?;
    let listener = TcpListener::bind((ip, 0))?;
    let mut block = vec![1; case.block];
    answer(&format!("at {}", listener.local_addr()?))?;
    let mut socket = accept(&listener)?;
    let cpu = cpu_seconds();
    let mut left = case.size;
    while left > 0 {
        let room = block.len().min(left);
        match socket.read(&mut block[..room])? {
            0 => return fail("the sender is gone"),
            n => left -= n,
        }
    }
    socket.write_all(&[1])?;
    Ok(cpu_seconds() - cpu)
}

fn accept(listener: &TcpListener) -> Result<TcpStream, Failure> {
    listener.set_nonblocking(true)?;
    let deadline = Deadline::after(SILENCE);
    loop {
        match listener.accept() {
            Ok((socket, _)) => return prepared(socket),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                deadline.check("a connection")?;
                std::thread::yield_now();
            }
            Err(error) => return Err(error.into()),
        }
    }
}
