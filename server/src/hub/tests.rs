//! Downloads from an imitation of the hub: its routes, its storage on another host, and their faults.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, Response, StatusCode};
use futures::{StreamExt, stream};
use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

use super::environment::HubSettings;
use super::reference::HubReference;
use super::{Contents, Hub, Snapshot};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "Bearer hf_secret";

/// A fault of the hub or of its storage.
#[derive(Debug, Clone, PartialEq)]
enum Fault {
    /// Every response has this status and this `X-Error-Code`.
    Status(u16, &'static str),
    /// The first `times` responses with bytes of the large file break off after `bytes` bytes.
    Cut { times: usize, bytes: usize },
    /// The storage ignores ranges.
    NoRanges,
    /// The storage sends other bytes of the same length.
    OtherBytes,
    /// The storage sends more bytes than the hub has promised.
    MoreBytes,
    /// The hub states this size of every file before it is downloaded.
    StatedSize(u64),
    /// The hub states no hash.
    NoHash,
    /// The storage redirects every request to itself.
    Circle,
}

/// A request that the hub or its storage has received.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Received {
    storage: bool,
    method: Method,
    path: String,
    range: Option<String>,
    has_token: bool,
}

#[derive(Clone)]
struct FakeHub {
    files: Arc<BTreeMap<String, Vec<u8>>>,
    faults: Arc<Mutex<Vec<Fault>>>,
    received: Arc<Mutex<Vec<Received>>>,
    /// Address of the storage, which is another host by its port.
    storage: Option<String>,
}

impl FakeHub {
    fn record(&self, request: &Request) {
        let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        self.received.lock().unwrap().push(Received {
            storage: self.storage.is_none(),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            range: header("range"),
            has_token: header("authorization").is_some_and(|value| value == TOKEN),
        });
    }

    fn fault<T>(&self, of: impl Fn(&mut Fault) -> Option<T>) -> Option<T> {
        self.faults.lock().unwrap().iter_mut().find_map(of)
    }
}

fn response(status: u16, headers: &[(&'static str, String)], body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        response.headers_mut().insert(*name, HeaderValue::from_str(value).unwrap());
    }
    response
}

fn is_large(name: &str) -> bool {
    !name.ends_with(".json")
}

/// The hub itself.
async fn answer(State(hub): State<FakeHub>, request: Request) -> Response<Body> {
    hub.record(&request);
    let path = request.uri().path();
    let status = |fault: &mut Fault| match fault {
        Fault::Status(status, code) => Some((*status, *code)),
        _ => None,
    };
    if let Some((status, code)) = hub.fault(status) {
        return response(status, &[("x-error-code", code.to_owned())], Body::empty());
    }
    if let Some(revision) = path.strip_prefix("/api/models/org/name/revision/") {
        if revision != "main" && revision != "v1" && revision != COMMIT {
            return response(404, &[("x-error-code", "RevisionNotFound".to_owned())], Body::empty());
        }
        let siblings: Vec<_> = hub.files.keys().map(|name| json!({"rfilename": name})).collect();
        let listing = json!({"id": "org/name", "sha": COMMIT, "siblings": siblings});
        return response(200, &[], listing.to_string().into());
    }
    // Small files are redirected to another path of the hub, as the hub does.
    let cached = path.strip_prefix("/api/resolve-cache/");
    let name = cached.or_else(|| path.strip_prefix(&format!("/org/name/resolve/{COMMIT}/")));
    let Some((name, bytes)) = name.and_then(|name| Some((name, hub.files.get(name)?))) else {
        return response(404, &[("x-error-code", "EntryNotFound".to_owned())], Body::empty());
    };
    if !is_large(name) && cached.is_none() {
        return response(307, &[("location", format!("/api/resolve-cache/{name}"))], Body::empty());
    }
    let stated = hub.fault(|fault| if let Fault::StatedSize(bytes) = fault { Some(*bytes) } else { None });
    let has_hash = hub.fault(|fault| (*fault == Fault::NoHash).then_some(())).is_none();
    if is_large(name) {
        let mut headers = vec![
            ("location", format!("{}/signed/{name}?signature=x", hub.storage.as_ref().unwrap())),
            ("x-linked-size", stated.unwrap_or(bytes.len() as u64).to_string()),
        ];
        if has_hash {
            headers.push(("x-linked-etag", format!("\"{:x}\"", Sha256::digest(bytes))));
        }
        return response(302, &headers, Body::from("Found. Redirecting"));
    }
    let mut hasher = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
    hasher.update(bytes);
    let etag = if has_hash { format!("\"{:x}\"", hasher.finalize()) } else { "\"opaque\"".to_owned() };
    let is_head = request.method() == Method::HEAD;
    let length = stated.filter(|_| is_head).unwrap_or(bytes.len() as u64).to_string();
    let body = if is_head { Body::empty() } else { bytes.clone().into() };
    response(200, &[("etag", etag), ("content-length", length)], body)
}

/// The storage of large files, on another host.
async fn store(State(hub): State<FakeHub>, request: Request) -> Response<Body> {
    hub.record(&request);
    if hub.fault(|fault| (*fault == Fault::Circle).then_some(())).is_some() {
        return response(302, &[("location", request.uri().to_string())], Body::empty());
    }
    let name = request.uri().path().strip_prefix("/signed/").unwrap();
    let mut bytes = hub.files[name].clone();
    if hub.fault(|fault| (*fault == Fault::OtherBytes).then_some(())).is_some() {
        bytes[0] ^= 1;
    }
    if hub.fault(|fault| (*fault == Fault::MoreBytes).then_some(())).is_some() {
        bytes.extend([0; 10]);
        // Without a length, so that only the bytes show it.
        return response(
            200,
            &[],
            Body::from_stream(stream::iter([Ok::<_, std::io::Error>(Bytes::from(bytes))])),
        );
    }
    let ignores_ranges = hub.fault(|fault| (*fault == Fault::NoRanges).then_some(())).is_some();
    let range = request.headers().get("range").filter(|_| !ignores_ranges);
    let start = range.map_or(0, first_byte);
    if start > bytes.len() {
        return response(416, &[], Body::empty());
    }
    let mut headers = vec![("content-length", (bytes.len() - start).to_string())];
    if range.is_some() {
        headers.push(("content-range", format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len())));
    }
    let rest = bytes.split_off(start);
    let cut = hub.fault(|fault| match fault {
        Fault::Cut { times, bytes } if *times > 0 => {
            *times -= 1;
            Some(*bytes)
        }
        _ => None,
    });
    let body = match cut {
        Some(bytes) => {
            let sent = Bytes::copy_from_slice(&rest[..bytes]);
            Body::from_stream(stream::once(async { Ok(sent) }).chain(stream::once(async {
                // The bytes before are written meanwhile.
                tokio::task::yield_now().await;
                Err(std::io::Error::other("cut"))
            })))
        }
        None => rest.into(),
    };
    response(if range.is_some() { 206 } else { 200 }, &headers, body)
}

fn first_byte(range: &HeaderValue) -> usize {
    range.to_str().unwrap().strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse().unwrap()
}

/// A hub, and a cache that it is downloaded to.
struct World {
    hub: FakeHub,
    endpoint: String,
    cache: tempfile::TempDir,
}

impl World {
    async fn new(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|&(name, bytes)| (name.to_owned(), bytes.to_vec())).collect();
        let mut hub = FakeHub {
            files: Arc::new(files),
            faults: Arc::default(),
            received: Arc::default(),
            storage: None,
        };
        let storage = serve(Router::new().fallback(store).with_state(hub.clone())).await;
        hub.storage = Some(storage);
        let endpoint = serve(Router::new().fallback(answer).with_state(hub.clone())).await;
        Self { hub, endpoint, cache: tempfile::tempdir().unwrap() }
    }

    /// Sets the faults and forgets the requests.
    fn with(&self, faults: &[Fault]) -> &Self {
        *self.hub.faults.lock().unwrap() = faults.to_vec();
        self.hub.received.lock().unwrap().clear();
        self
    }

    fn settings(&self) -> HubSettings {
        HubSettings {
            endpoint: self.endpoint.parse().unwrap(),
            authorization: Some(HeaderValue::from_static(TOKEN)),
            is_offline: false,
            cache: self.cache.path().to_owned(),
            pause: Duration::ZERO,
        }
    }

    async fn download(&self, reference: &str, contents: Contents) -> Result<Snapshot, String> {
        download(self.settings(), reference, contents).await
    }

    async fn model(&self) -> Result<Snapshot, String> {
        self.download("hf:org/name", Contents::Model).await
    }

    fn received(&self) -> Vec<Received> {
        self.hub.received.lock().unwrap().clone()
    }

    fn folder(&self) -> PathBuf {
        self.cache.path().join("models--org--name")
    }
}

async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn download(settings: HubSettings, reference: &str, contents: Contents) -> Result<Snapshot, String> {
    let reference: HubReference = reference.parse().unwrap();
    let hub = Hub::new(settings).map_err(|error| error.to_string())?;
    hub.download(&reference, contents).await.map_err(|error| error.to_string())
}

/// A model of a small and a large file, and files that are not read.
const FILES: [(&str, &[u8]); 4] = [
    ("README.md", b"not read"),
    ("config.json", b"{}"),
    ("model.safetensors", &[7; 100_000]),
    ("optimizer.pt", b"not read"),
];

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_repository_has_the_layout_of_hugging_face_and_only_files_that_are_read() {
    let world = World::new(&FILES).await;
    let found = world.model().await.unwrap();
    assert_eq!(found.commit, COMMIT);
    assert_eq!(found.path, world.folder().join("snapshots").join(COMMIT));
    assert_eq!(names(&found.path), ["config.json", "model.safetensors"]);
    for (name, bytes) in [FILES[1], FILES[2]] {
        assert_eq!(fs::read(found.path.join(name)).unwrap(), bytes);
        assert!(fs::read_link(found.path.join(name)).unwrap().starts_with("../../blobs"), "{name}");
    }
    let sha256 = format!("{:x}", Sha256::digest(FILES[2].1));
    // `printf '{}' | git hash-object --stdin`
    let git = "9e26dfeeb6e641a33dae4961196235bdb965b21b";
    let mut blobs = [git.to_owned(), sha256];
    blobs.sort();
    assert_eq!(names(&world.folder().join("blobs")), blobs);
    assert_eq!(fs::read_to_string(world.folder().join("refs/main")).unwrap(), COMMIT);
    // The files of a commit are not downloaded twice, and a commit that is complete needs no request.
    world.with(&[]).model().await.unwrap();
    assert_eq!(world.received().len(), 1, "{:?}", world.received());
    let pinned = world.with(&[]).download(&format!("hf:org/name@{COMMIT}"), Contents::Model).await;
    assert_eq!((pinned.unwrap(), world.received().len()), (found, 0));
}

#[tokio::test]
async fn the_token_is_sent_to_the_hub_only() {
    let world = World::new(&FILES).await;
    world.model().await.unwrap();
    let received = world.received();
    assert!(
        received.iter().any(|request| request.storage) && received.iter().any(|request| !request.storage)
    );
    assert!(received.iter().all(|request| request.has_token != request.storage), "{received:?}");
}

#[tokio::test]
async fn a_download_that_breaks_off_continues_where_it_ended() {
    let world = World::new(&FILES).await;
    // More often than attempts without progress are allowed.
    world.with(&[Fault::Cut { times: 9, bytes: 10_000 }]).model().await.unwrap();
    let ranges: Vec<String> = world.received().into_iter().filter_map(|request| request.range).collect();
    let resumed = (1..=9).map(|count| format!("bytes={}-", count * 10_000));
    // The hub and then the storage get each range.
    assert_eq!(ranges, resumed.flat_map(|range| [range.clone(), range]).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_later_process_resumes_what_an_earlier_one_has_left() {
    let world = World::new(&FILES).await;
    let sha256 = format!("{:x}", Sha256::digest(FILES[2].1));
    let part = world.folder().join("blobs").join(format!("{sha256}.incomplete"));
    let error = world.with(&[Fault::Cut { times: 100, bytes: 0 }]).model().await.unwrap_err();
    assert!(error.starts_with("cannot download model.safetensors of hf:org/name: "), "{error}");
    assert!(!error.contains("signature") && !error.contains('\n'), "{error}");
    fs::write(&part, &FILES[2].1[..60_000]).unwrap();
    world.with(&[]).model().await.unwrap();
    let ranges: Vec<String> = world.received().into_iter().filter_map(|request| request.range).collect();
    assert_eq!(ranges, ["bytes=60000-", "bytes=60000-"]);
    assert!(!part.exists());
    // A storage without ranges sends everything again; too much on the disk is dropped.
    for left in [vec![7; 60_000], vec![7; 200_000]] {
        fs::remove_dir_all(world.folder().join("snapshots")).unwrap();
        fs::remove_file(world.folder().join("blobs").join(&sha256)).unwrap();
        fs::write(&part, left).unwrap();
        let found = world.with(&[Fault::NoRanges]).model().await.unwrap();
        assert_eq!(fs::read(found.path.join("model.safetensors")).unwrap(), FILES[2].1);
    }
}

#[tokio::test]
async fn a_file_of_another_hash_or_size_is_not_kept() {
    let world = World::new(&FILES).await;
    let hash = format!("{:x}", Sha256::digest(FILES[2].1));
    for (fault, want) in [
        (Fault::OtherBytes, format!("instead of {hash}; the download was deleted")),
        (Fault::MoreBytes, " bytes instead of 100000".to_owned()),
        (Fault::NoHash, "it has no hash of the file in X-Linked-ETag or ETag".to_owned()),
        (Fault::StatedSize(99_999), "instead of 99999".to_owned()),
        (Fault::Circle, "it redirects more than 10 times".to_owned()),
    ] {
        let error = world.with(std::slice::from_ref(&fault)).model().await.unwrap_err();
        assert!(error.contains(&want) && error.contains(" of hf:org/name: "), "{fault:?}: {error}");
        assert!(!world.folder().join("blobs").join(&hash).exists(), "{fault:?}");
        assert!(!world.folder().join("refs").exists(), "{fault:?}");
    }
    world.with(&[]).model().await.unwrap();
}

#[tokio::test]
async fn a_size_that_nothing_has_room_for_is_refused_before_the_download() {
    let world = World::new(&FILES).await;
    let error = world.with(&[Fault::StatedSize(1 << 50)]).model().await.unwrap_err();
    assert_eq!(
        error,
        "cannot download config.json of hf:org/name: it has 1125899906842624 bytes; the limit for a file without \
         weights is 268435456"
    );
    let world = World::new(&[("m.gguf", b"weights")]).await;
    world.with(&[Fault::StatedSize(1 << 60)]);
    let error = world.download("hf:org/name/m.gguf", Contents::Model).await.unwrap_err();
    assert!(error.contains("1152921504606846976 bytes are missing, and "), "{error}");
    assert!(world.received().iter().all(|request| !request.storage), "{:?}", world.received());
}

#[tokio::test]
async fn a_refusal_of_the_hub_is_one_line_that_says_what_to_do() {
    let world = World::new(&FILES).await;
    for (status, code, want) in [
        (
            401,
            "RepoNotFound",
            "cannot download hf:org/name: the hub has no such repository, or HF_TOKEN has no access to it",
        ),
        (
            403,
            "GatedRepo",
            "cannot download hf:org/name: the repository is gated: accept its terms at http://127.0.0.1:",
        ),
        (
            401,
            "",
            "cannot download hf:org/name: the hub does not accept the token of HF_TOKEN (401 Unauthorized)",
        ),
        (404, "", "cannot download hf:org/name: the hub has no such repository"),
        (503, "", "cannot download hf:org/name: the hub returned 503 Service Unavailable"),
    ] {
        let error = world.with(&[Fault::Status(status, code)]).model().await.unwrap_err();
        assert!(error.starts_with(want) && !error.contains("hf_secret"), "{error}");
    }
    assert_eq!(world.received().len(), 5, "an outage is tried again");
    for (reference, want) in [
        ("hf:org/name@v2", "cannot download hf:org/name@v2: the repository has no revision `v2`"),
        (
            "hf:org/name/m.gguf",
            "cannot download m.gguf of hf:org/name/m.gguf: the repository has no such file",
        ),
    ] {
        assert_eq!(world.with(&[]).download(reference, Contents::Model).await, Err(want.to_owned()));
    }
}

#[tokio::test]
async fn without_a_network_a_complete_copy_is_used() {
    let world = World::new(&FILES).await;
    let offline = HubSettings { is_offline: true, ..world.settings() };
    let error = download(offline.clone(), "hf:org/name", Contents::Model).await.unwrap_err();
    assert!(error.starts_with("cannot download hf:org/name: HF_HUB_OFFLINE is set, and "), "{error}");
    let found = world.model().await.unwrap();
    world.with(&[]);
    assert_eq!(download(offline.clone(), "hf:org/name", Contents::Model).await, Ok(found.clone()));
    assert!(world.received().is_empty());
    assert!(download(offline, "hf:org/name@v1", Contents::Model).await.is_err());
    // A hub that is down, also if it is not expected.
    assert_eq!(world.with(&[Fault::Status(503, "")]).model().await, Ok(found.clone()));
    let refused = HubSettings { endpoint: "http://127.0.0.1:1".parse().unwrap(), ..world.settings() };
    assert_eq!(download(refused, "hf:org/name", Contents::Model).await, Ok(found.clone()));
    // A refusal is not an outage.
    assert!(world.with(&[Fault::Status(403, "GatedRepo")]).model().await.is_err());
    // A copy without its weights is not complete.
    fs::remove_file(found.path.join("model.safetensors")).unwrap();
    assert!(world.with(&[Fault::Status(503, "")]).model().await.is_err());
}

#[tokio::test]
async fn names_that_lead_out_of_the_cache_are_never_written() {
    let index = br#"{"weight_map": {"x": "../../../../outside.safetensors"}}"#;
    let world = World::new(&[
        ("../../../../outside.safetensors", b"x"),
        ("../../../config.json", b"x"),
        ("/etc/config.json", b"x"),
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index),
    ])
    .await;
    let error = world.model().await.unwrap_err();
    let want = "`../../../../outside.safetensors` is not the name of a file of the repository";
    assert_eq!(error, format!("cannot download hf:org/name: {want}"));
    assert_eq!(names(world.cache.path()), [".locks", "models--org--name"]);
    assert_eq!(
        names(&world.folder().join("snapshots").join(COMMIT)),
        ["config.json", "model.safetensors.index.json"]
    );
}

#[tokio::test]
async fn of_thousands_of_files_only_some_are_requested() {
    let many: Vec<String> =
        (0..5000).map(|count| format!("checkpoints/{count:05}/model.safetensors")).collect();
    let mut files: Vec<(&str, &[u8])> = many.iter().map(|name| (name.as_str(), b"x" as &[u8])).collect();
    files.extend(FILES);
    let world = World::new(&files).await;
    world.model().await.unwrap();
    let paths: Vec<String> = world.received().into_iter().map(|request| request.path).collect();
    assert_eq!(paths.iter().filter(|path| path.contains("checkpoints")).count(), 0);
    // The list, two requests to each of two addresses for the small file, and three for the large one.
    assert_eq!(paths.len(), 1 + 4 + 3, "{paths:?}");
}

#[tokio::test]
async fn tokenizers_adapters_and_single_files_have_their_own_contents() {
    let world = World::new(&[
        ("adapter_config.json", b"{}"),
        ("adapter_model.safetensors", b"lora"),
        ("config.json", b"{}"),
        ("gguf/m.Q4_K_M.gguf", b"weights"),
        ("model.safetensors", b"weights"),
        ("tokenizer.json", b"{}"),
    ])
    .await;
    let tokenizer = world.download("hf:org/name@v1", Contents::Tokenizer).await.unwrap();
    assert_eq!(names(&tokenizer.path), ["config.json", "tokenizer.json"]);
    let adapter = world.download("hf:org/name", Contents::Adapter).await.unwrap();
    assert_eq!(fs::read(adapter.path.join("adapter_model.safetensors")).unwrap(), b"lora");
    let file = world.download("hf:org/name/gguf/m.Q4_K_M.gguf", Contents::Model).await.unwrap();
    assert_eq!((fs::read(&file.path).unwrap().as_slice(), file.path.is_file()), (b"weights" as &[u8], true));
    assert!(!adapter.path.join("model.safetensors").exists());
    let gguf = World::new(&[("a.gguf", b"x"), ("b.gguf", b"x")]).await;
    let error = gguf.model().await.unwrap_err();
    assert!(
        error.ends_with("the repository has GGUF files and no other weights; name a file, such as a.gguf"),
        "{error}"
    );
}

#[tokio::test]
async fn two_servers_download_a_file_once() {
    let world = World::new(&FILES).await;
    let other = world.settings();
    let second = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(download(other, "hf:org/name", Contents::Model))
    });
    let first = tokio::task::spawn_blocking({
        let settings = world.settings();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(download(settings, "hf:org/name", Contents::Model))
        }
    });
    let found = first.await.unwrap().unwrap();
    assert_eq!(tokio::task::spawn_blocking(move || second.join().unwrap()).await.unwrap(), Ok(found));
    let bytes = world.received().into_iter().filter(|request| request.storage).count();
    assert_eq!(bytes, 1);
}
