//! The playground: a page for questions to the served models. It is compiled in and loads nothing from other
//! servers.

use axum::extract::{Path, State};
use axum::http::header;
use axum::response::IntoResponse;
use ntl_api::ErrorBody;

use crate::error::AppError;
use crate::paths::{PLAYGROUND, PLAYGROUND_FILE};
use crate::state::AppState;

/// Forbids resources from other servers, markup made from texts, and frames around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

struct File {
    name: &'static str,
    content_type: &'static str,
    content: &'static str,
}

macro_rules! file {
    ($name:literal, $content_type:expr) => {
        File {
            name: $name,
            content_type: $content_type,
            content: include_str!(concat!("playground/", $name)),
        }
    };
}

const PAGE: File = file!("index.html", HTML);

/// The files of the page.
const FILES: [File; 14] = [
    file!("api.js", SCRIPT),
    file!("chart.js", SCRIPT),
    file!("code.js", SCRIPT),
    file!("decisions.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("estimates.js", SCRIPT),
    file!("icon.svg", IMAGE),
    file!("main.js", SCRIPT),
    file!("panel.js", SCRIPT),
    file!("questions.js", SCRIPT),
    file!("requests.js", SCRIPT),
    file!("state.js", SCRIPT),
    file!("style.css", STYLE),
    file!("tokens.js", SCRIPT),
];

/// The playground.
///
/// A page for questions to the served models, which shows the distributions of their numbers.
#[utoipa::path(get, path = PLAYGROUND, tag = "operations", responses(
    (status = 200, description = "The page", body = String, content_type = "text/html"),
    (status = 404, description = "The playground is off (`--no-playground`)", body = ErrorBody),
))]
pub(crate) async fn page(State(app): State<AppState>) -> Result<impl IntoResponse, AppError> {
    send(&app, Some(&PAGE))
}

/// A script, style or image of the playground.
#[utoipa::path(get, path = PLAYGROUND_FILE, tag = "operations",
    params(("file" = String, Path, description = "Its name, such as `main.js`")),
    responses(
        (status = 200, description = "The file", content(
            (String = "text/javascript"), (String = "text/css"), (String = "image/svg+xml"),
        )),
        (status = 404, description = "No such file, or the playground is off (`--no-playground`)", body = ErrorBody),
))]
pub(crate) async fn file(
    State(app): State<AppState>,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, AppError> {
    send(&app, FILES.iter().find(|file| file.name == name))
}

fn send(app: &AppState, file: Option<&'static File>) -> Result<impl IntoResponse + use<>, AppError> {
    let Some(file) = file else { return Err(AppError::RouteNotFound) };
    if !app.settings.playground {
        return Err(AppError::RouteNotFound);
    }
    let headers = [
        (header::CONTENT_TYPE, file.content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // This address may belong to another version of the server later.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, file.content))
}
