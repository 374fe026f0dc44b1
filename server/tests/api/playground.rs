//! The playground: its files, what a browser may do with them, and how to turn it off.

use axum::http::header;
use ntl_engine::EngineLimits;
use ntl_server::app;
use ntl_server::settings::HttpSettings;

use crate::support::{config, get, loaded, metric_becomes, says, scripted, server, state_of};

/// The files that the page and its scripts refer to, each once.
async fn files(app: &axum::Router) -> Vec<(String, crate::support::Answer)> {
    let page = get(app, "/").await;
    assert_eq!(page.status, 200);
    let mut open = vec![page.text.clone()];
    let mut files = vec![("/".to_owned(), page)];
    while let Some(text) = open.pop() {
        let quoted = text.split('"').filter_map(|part| {
            let name = part.strip_prefix("playground/").or_else(|| part.strip_prefix("./"))?;
            ["js", "css", "svg"].iter().any(|kind| name.ends_with(&format!(".{kind}"))).then_some(name)
        });
        for name in quoted {
            let path = format!("/playground/{name}");
            if files.iter().any(|(known, _)| *known == path) {
                continue;
            }
            let file = get(app, &path).await;
            assert_eq!(file.status, 200, "{path}");
            open.push(file.text.clone());
            files.push((path, file));
        }
    }
    files
}

#[tokio::test]
async fn the_page_and_its_files_are_served_under_a_strict_policy() {
    let app = server(says("1"));
    let files = files(&app).await;
    assert!(files.len() > 12, "{}", files.len());
    for (path, file) in &files {
        let policy = file.header(header::CONTENT_SECURITY_POLICY).unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{path}: {policy}");
        assert!(
            !policy.contains("unsafe") && policy.contains("require-trusted-types-for 'script'"),
            "{path}"
        );
        assert_eq!(file.header(header::X_CONTENT_TYPE_OPTIONS), Some("nosniff"));
        let kind = file.header(header::CONTENT_TYPE).unwrap();
        let want = match path.rsplit('.').next().unwrap() {
            "js" => "text/javascript",
            "css" => "text/css",
            "svg" => "image/svg+xml",
            _ => "text/html",
        };
        assert!(kind.starts_with(want), "{path}: {kind}");
        // The name space of SVG is a name, not an address that is loaded.
        let text = file.text.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http:", "https:", "//cdn", "@import", "innerHTML", "eval(", "style=\""] {
            assert!(!text.contains(outside), "{path} contains {outside}");
        }
    }
    let bytes: usize = files.iter().map(|(_, file)| file.text.len()).sum();
    assert!(bytes < 150_000, "{bytes}");
}

#[tokio::test]
async fn a_file_that_is_not_part_of_it_is_not_found() {
    let app = server(says("1"));
    for path in
        ["/playground/", "/playground/x.js", "/playground/..%2fdocs.html", "/playground/a/b", "/playground"]
    {
        assert_eq!(get(&app, path).await.status, 404, "{path}");
    }
    metric_becomes(&app, "ntl_requests_in_flight", 0.0).await;
}

#[tokio::test]
async fn it_needs_no_key_and_can_be_turned_off() {
    let of = |settings: HttpSettings| {
        let models = vec![("scripted", loaded(Box::new(scripted(says("1")))))];
        app::router(state_of(models, settings, EngineLimits::default()))
    };
    let on = of(config(&["--api-key", "secret"]).http);
    assert_eq!(
        (get(&on, "/").await.status, get(&on, "/playground/main.js").await.status),
        (200.try_into().unwrap(), 200.try_into().unwrap())
    );
    assert_eq!(get(&on, "/v1/models").await.status, 401);
    let off = of(config(&["--no-playground"]).http);
    for path in ["/", "/playground/main.js"] {
        assert_eq!(get(&off, path).await.error()["code"], "route_not_found", "{path}");
    }
}
