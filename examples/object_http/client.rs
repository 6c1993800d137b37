//! The client: an object into a file, and a file into an object, by token.

use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;

use fabricast::buffer::SharedBufferManager;
use fabricast::memory::Access;
use fabricast::object::{
    AsyncObjectOps, CallbackError, ObjectChunk, ObjectClient, ObjectClientConfig, ObjectMemory,
};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_LENGTH, HOST, RANGE};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use crate::request::{REPLY, TOKEN, TRANSFERRED};
use crate::{Failure, GetArgs, PutArgs, say};

/// Bytes of an object that are in memory at once.
const WINDOW: u64 = 64 << 20;

/// The control path: a connection, and the object that it is about.
struct Http<'a> {
    sender: SendRequest<Full<Bytes>>,
    server: SocketAddr,
    path: String,
    /// For bytes that come in a body after all.
    memory: Option<&'a ObjectMemory>,
    in_band: u64,
}

impl Http<'_> {
    async fn connect(server: SocketAddr, bucket: &str, name: &str) -> Result<Self, Failure> {
        let stream = tokio::net::TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // It ends with the sender.
        tokio::spawn(connection);
        let path = format!("/{}/{}", encode(bucket), encode(name));
        Ok(Self {
            sender,
            server,
            path,
            memory: None,
            in_band: 0,
        })
    }

    async fn ask(
        &mut self,
        method: Method,
        headers: &[(hyper::header::HeaderName, String)],
        body: Bytes,
    ) -> Result<Response<Incoming>, CallbackError> {
        let mut request = Request::builder()
            .method(method)
            .uri(&self.path)
            .header(HOST, self.server.to_string());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        self.sender.ready().await?;
        let reply = self
            .sender
            .send_request(request.body(Full::new(body))?)
            .await?;
        if reply.status().is_success() || reply.headers().contains_key(REPLY) {
            return Ok(reply);
        }
        let status = reply.status();
        let why = reply.into_body().collect().await?.to_bytes();
        Err(format!("{status}: {}", String::from_utf8_lossy(&why)).into())
    }

    async fn size(&mut self) -> Result<u64, Failure> {
        let reply = self.ask(Method::HEAD, &[], Bytes::new()).await?;
        let length = reply.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
        length.ok_or_else(|| "the server does not say how long the object is".into())
    }
}

/// What the server says that it moved by RDMA; `None`: it declined.
fn transferred(reply: &Response<Incoming>) -> Result<Option<u64>, CallbackError> {
    let text = |name| reply.headers().get(name)?.to_str().ok();
    match text(REPLY) {
        // A server that knows nothing of tokens says nothing of them.
        None | Some("501") => Ok(None),
        Some("200" | "204" | "206") => {
            let bytes = text(TRANSFERRED).and_then(|bytes| bytes.parse().ok());
            bytes
                .map(Some)
                .ok_or_else(|| "how many bytes went is missing".into())
        }
        Some(other) => Err(format!("{other:?} is no answer to a token").into()),
    }
}

impl AsyncObjectOps for Http<'_> {
    async fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        let last = chunk.offset() + chunk.len() - 1;
        let headers = [
            (TOKEN, chunk.token().to_string()),
            (RANGE, format!("bytes={}-{last}", chunk.offset())),
        ];
        let reply = self.ask(Method::GET, &headers, Bytes::new()).await?;
        if let Some(bytes) = transferred(&reply)? {
            reply.into_body().collect().await?;
            return Ok(bytes);
        }
        let bytes = reply.into_body().collect().await?.to_bytes();
        let memory = self.memory.ok_or("there is no memory for a body")?;
        let bytes = &bytes[..bytes.len().min(chunk.len() as usize)];
        memory.copy_in(chunk.memory_offset(), bytes)?;
        self.in_band += bytes.len() as u64;
        Ok(bytes.len() as u64)
    }

    async fn put(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        let headers = [(TOKEN, chunk.token().to_string())];
        let reply = self.ask(Method::PUT, &headers, Bytes::new()).await?;
        let moved = transferred(&reply)?;
        reply.into_body().collect().await?;
        if let Some(bytes) = moved {
            return Ok(bytes);
        }
        let memory = self.memory.ok_or("there is no memory for a body")?;
        let mut bytes = vec![0; chunk.len() as usize];
        memory.copy_out(chunk.memory_offset(), &mut bytes)?;
        let reply = self.ask(Method::PUT, &[], bytes.into()).await?;
        match reply.status() {
            StatusCode::OK => {
                self.in_band += chunk.len();
                Ok(chunk.len())
            }
            status => Err(format!("{status} to the bytes in a body").into()),
        }
    }
}

/// Names as paths have them.
fn encode(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.worker_threads(1).enable_all().build()?)
}

fn tell(what: &str, bytes: u64, in_band: u64) {
    let by_token = bytes - in_band.min(bytes);
    say(format_args!(
        "{what} {bytes} bytes, {by_token} of them by token"
    ));
}

pub(crate) fn get(args: &GetArgs) -> Result<(), Failure> {
    let fabric = args.remote.rdma.open()?;
    let client = ObjectClient::open(&fabric, ObjectClientConfig::default())?;
    let mut file = File::create(&args.file)?;
    runtime()?.block_on(async {
        let mut http = Http::connect(args.server, &args.remote.bucket, &args.name).await?;
        let size = http.size().await?;
        let window = size.clamp(1, WINDOW);
        let pool = SharedBufferManager::allocate(1, window as usize)?;
        let buffer = pool
            .try_acquire()
            .ok_or("the pool's one buffer is not free")?;
        let memory = client.register(buffer, Access::WRITE)?;
        http.memory = Some(&memory);
        let (mut at, mut bytes) = (0, vec![0; window as usize]);
        while at < size {
            let len = (size - at).min(window);
            let got = client.get_async(&mut http, &memory, 0..len, at).await?;
            if got != len {
                return Err(format!("{got} bytes of {len} came: the object was changed").into());
            }
            let bytes = &mut bytes[..len as usize];
            memory.copy_out(0, bytes)?;
            file.write_all(bytes)?;
            at += len;
        }
        tell("got", size, http.in_band);
        Ok(())
    })
}

pub(crate) fn put(args: &PutArgs) -> Result<(), Failure> {
    let fabric = args.remote.rdma.open()?;
    let client = ObjectClient::open(&fabric, ObjectClientConfig::default())?;
    let mut content = Vec::new();
    File::open(&args.file)?.read_to_end(&mut content)?;
    runtime()?.block_on(async {
        let mut http = Http::connect(args.server, &args.remote.bucket, &args.name).await?;
        if content.is_empty() {
            http.ask(Method::PUT, &[], Bytes::new()).await?;
            tell("put", 0, 0);
            return Ok(());
        }
        let len = content.len() as u64;
        let pool = SharedBufferManager::allocate(1, content.len())?;
        let buffer = pool
            .try_acquire()
            .ok_or("the pool's one buffer is not free")?;
        let memory = client.register(buffer, Access::READ)?;
        // One request puts one object: it can't be cut.
        if memory.max_callback_size() < len {
            let limit = memory.max_callback_size();
            return Err(format!("{len} bytes, the limit of one request is {limit}").into());
        }
        memory.copy_in(0, &content)?;
        http.memory = Some(&memory);
        let put = client.put_async(&mut http, &memory, 0..len, 0).await?;
        tell("put", put, http.in_band);
        Ok(())
    })
}
