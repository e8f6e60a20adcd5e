//! Redis and Valkey.
//!
//! ```text
//!   kvik1:FLEET:b:OWNER:NAME     a value; expires by itself
//!   kvik1:FLEET:used             sorted set of OWNER:NAME by the time of their last use, in milliseconds
//!   kvik1:FLEET:used:OWNER       the same, of one owner
//!   kvik1:FLEET:expires          sorted set of OWNER:NAME by when they expire
//!   kvik1:FLEET:sizes            hash: bytes of OWNER:NAME
//!   kvik1:FLEET:totals           hash: bytes of `all` and of each OWNER
//!   kvik1:FLEET:r:KIND:NAME      hash of a record: `v`, its version, and `d`, its bytes
//!   kvik1:FLEET:r:KIND           set of the names of a kind's records
//! ```
//!
//! A script accounts for sizes with each write, but only if there are limits. There are three connections, so that
//! a short request does not wait behind a megabyte.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    Script,
};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::Url;

mod bounded;

use bounded::Bounded;
#[cfg(any(test, fuzzing))]
pub(crate) use bounded::fuzz;

use super::{Backend, Outdated, RecordKey, Retention, Value};
use crate::budget::SweepRules;
use crate::error::{Fault, RemoteError};
use crate::names::{Key, OwnerTag};

/// From docs/performance.md.
const TARGET_BYTES: usize = 256 << 10;
/// Maximum number of names in one request: 128 KiB.
const QUESTIONS_MAX: usize = 4096;
/// Minimum time between two reported uses, which is also the precision of the order of uses.
const RENEW_AFTER: Duration = Duration::from_secs(300);

pub(super) struct Redis {
    host: String,
    port: u16,
    login: RedisConnectionInfo,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    prefix: String,
    scripts: Scripts,
    lanes: Mutex<Option<Lanes>>,
}

/// Connections by purpose.
#[derive(Clone)]
struct Lanes {
    questions: MultiplexedConnection,
    reads: MultiplexedConnection,
    writes: MultiplexedConnection,
}

struct Scripts {
    exists: Script,
    put: Script,
    renew: Script,
    put_record: Script,
}

impl Redis {
    pub(super) fn new(url: &Url, tls: Option<ClientConfig>, fleet: OwnerTag) -> Result<Redis, RemoteError> {
        let bad = |reason: &str| RemoteError::BadUrl { reason: reason.to_owned() };
        // The crate's error message may contain the address.
        let info = url.as_str().into_connection_info();
        let info = info.map_err(|_| bad("Redis takes redis://USER:PASSWORD@HOST:PORT/DATABASE"))?;
        let ConnectionAddr::Tcp(host, port) = info.addr().clone() else { return Err(bad("it has no host")) };
        let name = ServerName::try_from(host.clone());
        let tls = match (tls, name) {
            (Some(config), Ok(name)) => Some((TlsConnector::from(Arc::new(config)), name)),
            (Some(_), Err(_)) => return Err(bad("its host cannot be in a certificate")),
            (None, _) => None,
        };
        let login = info.redis_settings().clone();
        let (prefix, scripts) = (format!("kvik1:{fleet}:"), Scripts::new());
        Ok(Redis { host, port, login, tls, prefix, scripts, lanes: Mutex::new(None) })
    }

    async fn lane(&self) -> Result<MultiplexedConnection, Fault> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(unreachable)?;
        tcp.set_nodelay(true).map_err(unreachable)?;
        match &self.tls {
            Some((connector, name)) => {
                self.log_in(connector.connect(name.clone(), tcp).await.map_err(unreachable)?).await
            }
            None => self.log_in(tcp).await,
        }
    }

    async fn log_in<S>(&self, stream: S) -> Result<MultiplexedConnection, Fault>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        // Callers have deadlines of their own.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&self.login, Bounded::new(stream), config).await?;
        tokio::spawn(driver);
        Ok(connection)
    }

    fn lanes(&self) -> Result<Lanes, Fault> {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        lanes.ok_or_else(|| Fault::Unreachable("not connected".to_owned()))
    }

    fn value(&self, key: &Key) -> String {
        format!("{}b:{key}", self.prefix)
    }

    fn kind(&self, kind: OwnerTag) -> String {
        format!("{}r:{kind}", self.prefix)
    }

    fn record_key(&self, key: &RecordKey) -> String {
        format!("{}:{}", self.kind(key.kind), key.name)
    }
}

#[async_trait]
impl Backend for Redis {
    fn target_bytes(&self) -> usize {
        TARGET_BYTES
    }

    fn questions_max(&self) -> usize {
        QUESTIONS_MAX
    }

    fn renew_after(&self, retention: &Retention) -> Duration {
        RENEW_AFTER.min(retention.ttl / 2)
    }

    async fn connect(&self) -> Result<(), Fault> {
        let lanes =
            Lanes { questions: self.lane().await?, reads: self.lane().await?, writes: self.lane().await? };
        *self.lanes.lock().unwrap_or_else(PoisonError::into_inner) = Some(lanes);
        Ok(())
    }

    async fn exists(&self, keys: &[Key]) -> Result<Vec<bool>, Fault> {
        let names = keys.iter().map(Key::to_string).collect::<String>();
        let mut script = self.scripts.exists.arg(&self.prefix);
        let there: Vec<u8> = script.arg(names).invoke_async(&mut self.lanes()?.questions).await?;
        if there.len() != keys.len() {
            return Err(Fault::Failed("an answer of another length".to_owned()));
        }
        Ok(there.into_iter().map(|there| there == b'1').collect())
    }

    async fn get(&self, key: &Key, bytes_max: usize) -> Result<Option<Value>, Fault> {
        let mut get = redis::cmd("GETRANGE");
        get.arg(self.value(key)).arg(0).arg(bytes_max);
        let bytes: Vec<u8> = get.query_async(&mut self.lanes()?.reads).await?;
        // A missing key reads as empty, and no value is empty.
        Ok((!bytes.is_empty()).then_some(Value { bytes, age: None }))
    }

    async fn put(&self, key: &Key, value: Vec<u8>, retention: &Retention) -> Result<(), Fault> {
        let mut connection = self.lanes()?.writes;
        let ttl_ms = milliseconds(retention.ttl);
        if retention.total_max.is_none() && retention.owner_max.is_none() {
            let mut set = redis::cmd("SET");
            return Ok(set
                .arg(self.value(key))
                .arg(value)
                .arg("PX")
                .arg(ttl_ms)
                .query_async(&mut connection)
                .await?);
        }
        let mut script = self.scripts.put.arg(&self.prefix);
        script.arg(key.to_string()).arg(value).arg(ttl_ms);
        script.arg(retention.total_max.unwrap_or(0)).arg(retention.owner_max.unwrap_or(0));
        Ok(script.invoke_async(&mut connection).await?)
    }

    async fn renew(&self, key: &Key, retention: &Retention) -> Result<bool, Fault> {
        let mut script = self.scripts.renew.arg(&self.prefix);
        script.arg(key.to_string()).arg(milliseconds(retention.ttl));
        Ok(script.invoke_async(&mut self.lanes()?.questions).await?)
    }

    async fn delete(&self, key: &Key) -> Result<(), Fault> {
        // Its accounting entries are removed when it would have expired.
        Ok(redis::cmd("UNLINK").arg(self.value(key)).query_async(&mut self.lanes()?.questions).await?)
    }

    async fn sweep(&self, _rules: &SweepRules) -> Result<(), Fault> {
        Ok(())
    }

    async fn record(&self, key: &RecordKey, bytes_max: usize) -> Result<Option<(u64, Vec<u8>)>, Fault> {
        let mut connection = self.lanes()?.questions;
        let name = self.record_key(key);
        let bytes: usize = redis::cmd("HSTRLEN").arg(&name).arg("d").query_async(&mut connection).await?;
        if bytes > bytes_max {
            return Ok(Some((0, Vec::new())));
        }
        let (version, bytes): (Option<u64>, Option<Vec<u8>>) =
            redis::cmd("HMGET").arg(&name).arg("v").arg("d").query_async(&mut connection).await?;
        Ok(version.zip(bytes))
    }

    async fn put_record(
        &self,
        key: &RecordKey,
        after: u64,
        bytes: Vec<u8>,
    ) -> Result<Result<(), Outdated>, Fault> {
        let mut script = self.scripts.put_record.key(self.record_key(key));
        script.key(self.kind(key.kind)).arg(after).arg(bytes).arg(&key.name);
        let newest: Option<u64> = script.invoke_async(&mut self.lanes()?.questions).await?;
        Ok(newest.map_or(Ok(()), |version| Err(Outdated { version })))
    }

    async fn delete_record(&self, key: &RecordKey) -> Result<(), Fault> {
        let mut both = redis::pipe();
        both.atomic().cmd("UNLINK").arg(self.record_key(key)).ignore();
        both.cmd("SREM").arg(self.kind(key.kind)).arg(&key.name).ignore();
        Ok(both.query_async(&mut self.lanes()?.questions).await?)
    }

    async fn records(&self, kind: OwnerTag) -> Result<Vec<String>, Fault> {
        Ok(redis::cmd("SMEMBERS").arg(self.kind(kind)).query_async(&mut self.lanes()?.questions).await?)
    }
}

fn milliseconds(ttl: Duration) -> u64 {
    // Redis refuses 0, and values that overflow when added to the time.
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 50)
}

fn unreachable(error: std::io::Error) -> Fault {
    Fault::Unreachable(error.to_string())
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Fault {
        // Only the code of a server error is shown: the message may repeat the request.
        let code = || error.code().unwrap_or("an error").to_owned();
        match (error.kind(), error.code()) {
            (_, Some("OOM")) => Fault::Full(code()),
            (ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => {
                Fault::Refused(code())
            }
            (ErrorKind::Io, _) => Fault::Unreachable(error.to_string()),
            (ErrorKind::Server(_) | ErrorKind::Extension, _) => Fault::Failed(code()),
            (kind, _) => Fault::Failed(format!("{kind:?}")),
        }
    }
}

impl Scripts {
    fn new() -> Scripts {
        Scripts {
            exists: Script::new(EXISTS),
            put: Script::new(&[ACCOUNT, PUT].concat()),
            renew: Script::new(&[ACCOUNT, RENEW].concat()),
            put_record: Script::new(PUT_RECORD),
        }
    }
}

/// Arguments: prefix, concatenated names. Returns `1` or `0` for each.
const EXISTS: &str = include_str!("redis/exists.lua");
/// Common part of the following two scripts.
const ACCOUNT: &str = include_str!("redis/account.lua");
/// Arguments: prefix, OWNER:NAME, value, milliseconds, total limit, limit of the owner (0 for none).
const PUT: &str = include_str!("redis/put.lua");
/// Arguments: prefix, OWNER:NAME, milliseconds. Returns 1, or 0 if the value is gone.
const RENEW: &str = include_str!("redis/renew.lua");
/// Keys: record and set; arguments: expected version, bytes, name. Returns the present version if it differs.
const PUT_RECORD: &str = include_str!("redis/put_record.lua");
