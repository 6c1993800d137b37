//! How a client and a server meet: who they are, whether both have the key, and whether there is
//! room. Over TCP, in lines, before anything is measured.
//!
//! ```text
//!   server ── fabricast-bench 1 VERSION NONCE key|open ─► client
//!   server ◄─ client NONCE PROOF SESSION NUMBER OF ────── client
//!   server ── server PROOF ─────────────────────────────► client      or: failed WHY
//! ```
//!
//! A proof is a keyed BLAKE3 hash over the role of the speaker and both nonces: it is good for this
//! connection only, and from this side only. The server proves itself last, so nobody learns
//! anything from it that has no key. What follows is not protected from somebody who can change
//! packets between the two; nor are the connections that are measured.

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use fabricast::stream::PresharedKey;

use crate::control::Control;
use crate::error::{Failure, Kind};

/// Of this conversation and of all that follows it.
const PROTOCOL: u32 = 1;
/// What a server's first line begins with.
const NAME: &str = "fabricast-bench";
/// Separates this use of the key's bytes from any other.
const CONTEXT: &str = "fabricast 2026-11-26 bench, control connection, version 1";
/// How long the other end may take for its line.
const PATIENCE: Duration = Duration::from_secs(10);
/// Clients' processes of one session at most.
pub const MEMBERS_MAX: u16 = 256;

/// A key that both ends have.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of these bytes, all of which count: 16 to 4096, as those of `fabricast send --key`.
    ///
    /// # Errors
    /// When they are too few or too many.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Failure> {
        PresharedKey::from_bytes(bytes)?;
        Ok(Self(blake3::derive_key(CONTEXT, bytes)))
    }

    fn proof(&self, role: &str, nonces: [&str; 2]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for text in [role, nonces[0], nonces[1]] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.finalize()
    }

    /// Takes as long for a wrong proof as for the right one.
    fn is_proven(&self, role: &str, nonces: [&str; 2], proof: &str) -> bool {
        let said = blake3::Hash::from_hex(proof);
        said.is_ok_and(|said| said == self.proof(role, nonces))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// So many bytes that nobody can guess, 256 at most.
///
/// # Errors
/// When the system has no random numbers.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(len) if len == N => Ok(bytes),
        _ => Err(Failure::of("the system has no random numbers for a key")),
    }
}

fn nonce() -> Result<String, Failure> {
    Ok(blake3::Hash::from_bytes(random_bytes()?)
        .to_hex()
        .to_string())
}

/// Which of a client's processes a connection is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// A random number: of one client, at one time.
    pub session: u64,
    /// From 0 on.
    pub number: u16,
    /// How many there are.
    pub of: u16,
}

impl Member {
    fn text(&self) -> String {
        format!("{:016x} {} {}", self.session, self.number, self.of)
    }

    fn parse(words: &[&str]) -> Option<Self> {
        let [session, number, of] = words else {
            return None;
        };
        let member = Self {
            session: u64::from_str_radix(session, 16).ok()?,
            number: number.parse().ok()?,
            of: of.parse().ok()?,
        };
        let fits = member.number < member.of && member.of <= MEMBERS_MAX;
        fits.then_some(member)
    }
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The server's half: a member that has the key, if there is one, and whom `admit` takes.
///
/// # Errors
/// When it is no client, has no key, or is not admitted: it has been told why.
pub fn greet(
    stream: TcpStream,
    key: Option<&Key>,
    admit: impl FnOnce(Member) -> Result<(), Failure>,
) -> Result<(Control, Member), Failure> {
    let mut control = Control::over(stream)?;
    let greeted = talk(&mut control, key, admit);
    match greeted {
        Ok((member, line)) => {
            control.say(&line)?;
            control.trust();
            Ok((control, member))
        }
        Err(failure) => {
            // That it is not heard is no reason for another error.
            let _ = control.say(&format!("failed {failure}"));
            Err(failure)
        }
    }
}

fn talk(
    control: &mut Control,
    key: Option<&Key>,
    admit: impl FnOnce(Member) -> Result<(), Failure>,
) -> Result<(Member, String), Failure> {
    let own = nonce()?;
    let kind = if key.is_some() { "key" } else { "open" };
    control.say(&format!("{NAME} {PROTOCOL} {} {own} {kind}", version()))?;
    let said = control.expect("client", PATIENCE)?;
    let words: Vec<_> = said.split(' ').collect();
    let [nonce, proof, member @ ..] = &words[..] else {
        return Err(Failure::of("a client's line has other words").is(Kind::Refused));
    };
    let nonces = [own.as_str(), nonce];
    if key.is_some_and(|key| !key.is_proven("client", nonces, proof)) {
        let text = "the client does not have the key: give both ends the same --key";
        return Err(Failure::of(text).is(Kind::Refused));
    }
    let member = Member::parse(member)
        .ok_or_else(|| Failure::of("a client's line has other words").is(Kind::Refused))?;
    admit(member)?;
    let proof = key.map_or_else(
        || "-".to_owned(),
        |key| key.proof("server", nonces).to_hex().to_string(),
    );
    Ok((member, format!("server {proof}")))
}

/// The client's half.
///
/// # Errors
/// [`Kind::Unreachable`] when nobody answers; [`Kind::Refused`] when it is no server of this
/// version, does not have the key, or does not take this one.
pub fn join(to: SocketAddr, key: Option<&Key>, member: Member) -> Result<Control, Failure> {
    let mut control = Control::connect(to)?;
    let refused = |text: String| Failure::new(format!("{to}: {text}")).is(Kind::Refused);
    let said = control
        .expect(NAME, PATIENCE)
        .map_err(|failure| Failure::new(format!("{to}: {failure}")).is(failure.kind()))?;
    let words: Vec<_> = said.split(' ').collect();
    let [protocol, theirs, their_nonce, kind] = words[..] else {
        return Err(refused(other_version("?")));
    };
    if protocol.parse() != Ok(PROTOCOL) {
        return Err(refused(other_version(theirs)));
    }
    let own = nonce()?;
    let nonces = [their_nonce, own.as_str()];
    let proof = match (kind, key) {
        ("key", Some(key)) => key.proof("client", nonces).to_hex().to_string(),
        ("key", None) => {
            let text = "this server wants a key: give --key, the same file as there";
            return Err(refused(text.to_owned()));
        }
        // Whoever has a key wants to talk to nobody else.
        (_, Some(_)) => {
            let text = "this server has no key: start it with the same --key";
            return Err(refused(text.to_owned()));
        }
        (_, None) => "-".to_owned(),
    };
    control.say(&format!("client {own} {proof} {}", member.text()))?;
    let said = control.hear(PATIENCE)?.unwrap_or_default();
    match said.split_once(' ') {
        Some(("server", proof)) => {
            if key.is_some_and(|key| !key.is_proven("server", nonces, proof)) {
                let text = "the server does not have the key: give both ends the same --key";
                return Err(refused(text.to_owned()));
            }
        }
        Some(("failed", why)) => return Err(refused(why.to_owned())),
        _ => return Err(refused("it went without a word".to_owned()).is(Kind::Unreachable)),
    }
    control.trust();
    Ok(control)
}

fn other_version(theirs: &str) -> String {
    format!(
        "its fabricast is version {theirs}, this one {}: install the same version at both ends",
        version()
    )
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    const MEMBER: Member = Member {
        session: 0xfeed,
        number: 1,
        of: 3,
    };

    fn key(byte: u8) -> Key {
        Key::from_bytes(&[byte; 32]).expect("long enough")
    }

    fn meet(server: Option<Key>, client: Option<Key>) -> [Result<Member, Failure>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let greeting = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            greet(stream, server.as_ref(), |_| Ok(())).map(|(_, member)| member)
        });
        let joined = join(at, client.as_ref(), MEMBER).map(|_| MEMBER);
        [greeting.join().expect("no panic"), joined]
    }

    #[test]
    fn only_who_has_the_key_meets() {
        for both in [None, Some(key(1))] {
            let [server, client] = meet(both.clone(), both);
            assert_eq!(server.expect("welcome"), MEMBER);
            client.expect("welcome");
        }
        for (server, client, why) in [
            (Some(key(1)), Some(key(2)), "does not have the key"),
            (Some(key(1)), None, "wants a key"),
            (None, Some(key(1)), "has no key"),
        ] {
            let [at_server, at_client] = meet(server, client);
            at_server.expect_err("refused");
            let failure = at_client.expect_err("refused");
            assert_eq!(failure.kind(), Kind::Refused);
            assert!(failure.to_string().contains(why), "{failure}");
        }
    }

    #[test]
    fn a_proof_is_good_for_one_key_one_role_and_one_conversation() {
        let proof = key(1).proof("client", ["a", "b"]).to_hex();
        assert!(key(1).is_proven("client", ["a", "b"], &proof));
        for (key, role, nonces) in [
            (key(2), "client", ["a", "b"]),
            (key(1), "server", ["a", "b"]),
            (key(1), "client", ["ab", ""]),
            (key(1), "client", ["b", "a"]),
        ] {
            assert!(!key.is_proven(role, nonces, &proof));
        }
        assert!(!key(1).is_proven("client", ["a", "b"], "-"));
    }

    /// Says these bytes to a server; what it answers behind its first line.
    fn told(bytes: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let greeting = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            greet(stream, Some(&key(1)), |_| Ok(())).map(|_| ())
        });
        let stream = TcpStream::connect(at).expect("it listens");
        let mut lines = BufReader::new(stream.try_clone().expect("a descriptor")).lines();
        lines.next().expect("a line").expect("of text");
        // It may have heard enough before it has heard all.
        let _ = (&stream).write_all(bytes);
        let answer = lines.next().and_then(Result::ok).unwrap_or_default();
        greeting.join().expect("no panic").expect_err("refused");
        answer
    }

    #[test]
    fn hostile_bytes_are_refused_soon_and_take_no_memory() {
        let long = vec![b'x'; 1 << 22];
        let proof = "00".repeat(32);
        let guess = format!("client {proof} {proof} 0 0 1\n");
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"client\n",
            b"client a b c d e f g\n",
            b"\xff\xfe\n",
            guess.as_bytes(),
            &long,
        ] {
            let answer = told(bytes);
            // Of a long line the answer may be lost with the connection.
            assert!(
                answer.starts_with("failed ") || bytes.len() > 1 << 20,
                "{answer:?}"
            );
        }
    }

    #[test]
    fn a_server_of_another_version_is_named() {
        for (line, why) in [
            ("fabricast-bench 2 9.9.9 x open", "version 9.9.9"),
            ("fabricast-bench", "version ?"),
            ("SSH-2.0-OpenSSH", "instead of"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let at = listener.local_addr().expect("bound");
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a client");
                writeln!(stream, "{line}").expect("sent");
            });
            let failure = join(at, None, MEMBER).expect_err("refused");
            server.join().expect("no panic");
            assert_eq!(failure.kind(), Kind::Refused, "{failure}");
            assert!(failure.to_string().contains(why), "{failure}");
        }
    }

    #[test]
    fn members_are_what_they_say() {
        let words = |text: &'static str| text.split(' ').collect::<Vec<_>>();
        let text = MEMBER.text();
        let said: Vec<_> = text.split(' ').collect();
        assert_eq!(Member::parse(&said), Some(MEMBER));
        for text in ["", "1 0", "x 0 1", "1 1 1", "1 0 257", "1 0 1 x", "1 -1 1"] {
            assert_eq!(Member::parse(&words(text)), None, "{text}");
        }
    }
}
