//! `Exporter`: the text of the registry, served over HTTP by a thread of its own.
//!
//! What a client may cost is bounded: so many connections, so many bytes of a request's head, so
//! much time for it, and so much for all of a connection.

use std::convert::Infallible;
use std::fs::{self, DirBuilder};
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE as TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};

use super::{CONTENT_TYPE, openmetrics_text};
use crate::process::Owner;

/// Connections at once; others wait to be taken.
const CONNECTIONS: usize = 16;

/// Bytes of a request that are read before it is refused.
const HEAD_BYTES: usize = 8 * 1024;

/// How long a request's head may take.
const HEAD_WITHIN: Duration = Duration::from_secs(5);

/// How long a connection may stand, whatever it does: a scraper that keeps it makes another.
const STANDS_FOR: Duration = Duration::from_secs(300);

/// How long the exporter does not take connections when the system would give it none.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves the text of [`openmetrics_text`] at `/metrics`, until it is dropped. It has one thread,
/// which nothing else in the library waits for.
///
/// Whoever reaches the address reads the numbers: nobody is asked who they are, and nothing is
/// encrypted. At most 16 connections are taken at once; a request's head may have 8 KiB and take 5
/// seconds.
///
/// Where this process' user has a directory for what runs (`XDG_RUNTIME_DIR`, or `/run/user/UID`),
/// a file below it says where the exporter of the process listens, so that `fabricast top --pid`
/// finds it: [`exporter_of`].
///
/// ```
/// use std::io::{Read, Write};
/// use fabricast::metrics::Exporter;
///
/// let exporter = Exporter::listen("127.0.0.1:0".parse()?)?;
/// let mut client = std::net::TcpStream::connect(exporter.local_addr())?;
/// client.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")?;
/// let mut answer = String::new();
/// client.read_to_string(&mut answer)?;
/// assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("# EOF\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Exporter {
    local: SocketAddr,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
    told: Option<PathBuf>,
    owner: Owner,
}

impl Exporter {
    /// Listens at an address; with port 0 at a free one, which
    /// [`local_addr`](Self::local_addr) says.
    ///
    /// # Errors
    /// The address can't be listened at, or the thread can't be made.
    pub fn listen(addr: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let local = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel::<Infallible>();
        let serve = move || {
            let (mut serving, mut stopped) = (Box::pin(serve(listener)), Box::pin(stopped));
            runtime.block_on(poll_fn(|context| {
                let is_over = stopped.as_mut().poll(context).is_ready();
                match is_over || serving.as_mut().poll(context).is_ready() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            }));
            // Those that are connected are not waited for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new()
            .name("metrics-exporter".to_owned())
            .spawn(serve)?;
        Ok(Self {
            local,
            stop: Some(stop),
            thread: Some(thread),
            told: tell(local),
            owner: Owner::current(),
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // A forked child has no such thread, and the file is its parent's.
        if !self.owner.is_here() {
            std::mem::forget(self.stop.take());
            std::mem::forget(self.thread.take());
            return;
        }
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the exporter of metrics panicked");
        }
        if let Some(file) = &self.told {
            let _ = fs::remove_file(file);
        }
    }
}

/// Takes connections for ever.
async fn serve(listener: TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // It is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(STANDS_FOR, converse(stream)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the exporter of metrics could not take a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn converse(stream: TcpStream) {
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    if let Err(error) = conversation.await {
        tracing::debug!(%error, "a request for metrics came to nothing");
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, kind, text) = match request.uri().path() {
        "/metrics" if is_read => (StatusCode::OK, CONTENT_TYPE, openmetrics_text()),
        "/metrics" => (
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain",
            "GET\n".to_owned(),
        ),
        _ => (
            StatusCode::NOT_FOUND,
            "text/plain",
            "see /metrics\n".to_owned(),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    Ok(response)
}

// ---- where it is --------------------------------------------------------------------------------

/// The directory for what runs of this user, which nobody else may write.
fn runtime_dir() -> Option<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let dir = given.unwrap_or_else(|| PathBuf::from(format!("/run/user/{user}")));
    let found = fs::metadata(&dir).ok()?;
    let is_ours = found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0;
    (dir.is_absolute() && is_ours).then_some(dir)
}

fn file_of(dir: &Path, pid: u32) -> PathBuf {
    dir.join("fabricast").join(format!("{pid}.metrics"))
}

/// Writes down where this process listens, if there is a place for it.
fn tell(local: SocketAddr) -> Option<PathBuf> {
    let dir = runtime_dir()?;
    let file = file_of(&dir, std::process::id());
    let _ = DirBuilder::new().mode(0o700).create(dir.join("fabricast"));
    match super::file::replace(&file, format!("{local}\n").as_bytes()) {
        Ok(()) => Some(file),
        Err(error) => {
            tracing::debug!(%error, "nobody is told where the exporter of metrics listens");
            None
        }
    }
}

/// Where the exporter of a process of this user listens; of one that listens at all addresses, on
/// loopback. Nothing: the process has none, or this user has no directory where it would say so.
pub fn exporter_of(pid: u32) -> Option<SocketAddr> {
    let said = fs::read_to_string(file_of(&runtime_dir()?, pid)).ok()?;
    let mut addr: SocketAddr = said.trim().parse().ok()?;
    if addr.ip().is_unspecified() {
        addr.set_ip(match addr.ip() {
            IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    Some(addr)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use crate::metrics::tests::parse;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn connected(exporter: &Exporter) -> TcpStream {
        let stream = TcpStream::connect(exporter.local_addr()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// What is answered to this, until the end.
    fn ask(exporter: &Exporter, request: &str) -> String {
        let mut stream = connected(exporter);
        // It may have been refused before all of it was sent.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("text")
    }

    fn request(method: &str, path: &str) -> String {
        format!("{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    }

    fn here() -> Exporter {
        Exporter::listen("127.0.0.1:0".parse().unwrap()).expect("listens")
    }

    #[test]
    fn it_answers_get_metrics_and_nothing_else() {
        let exporter = here();
        let answer = ask(&exporter, &request("GET", "/metrics"));
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains(&format!("content-type: {CONTENT_TYPE}")),
            "{head}"
        );
        assert!(!parse(body).is_empty());
        for (method, path, status) in [
            ("GET", "/", "404"),
            ("GET", "/metrics/..", "404"),
            ("POST", "/metrics", "405"),
            ("HEAD", "/metrics", "200"),
        ] {
            let answer = ask(&exporter, &request(method, path));
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{answer}"
            );
        }
        let local = exporter.local_addr();
        drop(exporter);
        assert!(TcpStream::connect(local).is_err(), "it listens no more");
    }

    #[test]
    fn who_says_too_much_or_nonsense_is_refused_and_others_are_served() {
        let exporter = here();
        let long = format!(
            "GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n",
            "x".repeat(1 << 20)
        );
        for nonsense in [long.as_str(), "\0\0\0\0\r\n\r\n", "GET\r\n\r\n"] {
            let answer = ask(&exporter, nonsense);
            assert!(!answer.contains("200 OK"), "{answer}");
        }
        assert!(ask(&exporter, &request("GET", "/metrics")).contains("200 OK"));
    }

    /// As many as there are places, which say nothing, are cut off: the next one is served.
    #[test]
    fn who_says_nothing_does_not_keep_a_place() {
        let exporter = here();
        let silent: Vec<_> = (0..CONNECTIONS).map(|_| connected(&exporter)).collect();
        assert!(ask(&exporter, &request("GET", "/metrics")).contains("200 OK"));
        drop(silent);
    }

    #[test]
    fn an_address_that_is_taken_is_an_error() {
        let exporter = here();
        let error = Exporter::listen(exporter.local_addr()).expect_err("it is taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
