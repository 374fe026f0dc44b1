//! `/rerank` and `/predict`: documents compared with what transformers computes, with `/classify`, and with
//! `/v1/decisions`.

use axum::Router;
use serde_json::{Value, json};

use crate::classify::{folder, head};
use crate::structured_numbers::tiny;
use crate::support::{four_or_five, metric, post};

const QUERY: &str = "What is 7 + 52?";
const DOCUMENTS: [&str; 4] = ["It is 59.", "12 apples and 340 pears are 352.", "no", "Work out -8 - 3.5."];

async fn ok(app: &Router, path: &str, body: Value) -> Value {
    let answer = post(app, path, body).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    answer.json()
}

/// The scores by the index of the document, after checking the order of the results.
fn scores(response: &Value) -> Vec<f64> {
    let results = response["results"].as_array().unwrap();
    let mut scores = vec![f64::NAN; results.len()];
    let mut last = f64::INFINITY;
    for result in results {
        let index = result["index"].as_u64().unwrap() as usize;
        let score = result["relevance_score"].as_f64().unwrap();
        assert_eq!(result["document"], json!({"text": DOCUMENTS[index]}));
        assert!(score <= last, "{response}");
        (scores[index], last) = (score, score);
    }
    scores
}

/// The pairs of [`QUERY`] and each of [`DOCUMENTS`] that transformers has computed.
fn pairs(name: &str) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(folder(name).join("pairs.json")).unwrap()).unwrap()
}

#[tokio::test]
async fn heads_rank_documents_as_transformers_does() {
    for name in ["llama-reward", "bert-relevance", "roberta-regression", "modernbert-mean"] {
        let app = head(name);
        let mut want = Vec::new();
        let mut tokens = 0;
        for (pair, document) in pairs(name).iter().zip(DOCUMENTS) {
            assert_eq!(pair["texts"], json!([QUERY, document]));
            tokens += pair["ids"].as_array().unwrap().len();
            let logits: Vec<f64> =
                pair["logits"].as_array().unwrap().iter().map(|logit| logit.as_f64().unwrap()).collect();
            want.push(match (name, &logits[..]) {
                ("roberta-regression", [value]) => *value,
                (_, [value]) => 1.0 / (1.0 + (-value).exp()),
                (_, [irrelevant, relevant]) => 1.0 / (1.0 + (irrelevant - relevant).exp()),
                _ => panic!("one or two labels"),
            });
        }
        let mut body = json!({"query": QUERY, "documents": DOCUMENTS});
        for path in ["/rerank", "/v1/rerank"] {
            let response = ok(&app, path, body.clone()).await;
            for (got, want) in scores(&response).iter().zip(&want) {
                assert!((got - want).abs() < 1e-4, "{name}: {got}, expected {want}");
            }
            let usage = json!({"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens});
            assert_eq!((&response["usage"], &response["model"]), (&usage, &json!(name)));
        }
        let together = scores(&ok(&app, "/rerank", body.clone()).await);
        for (document, score) in DOCUMENTS.iter().zip(together) {
            body["documents"] = json!([document]);
            let alone = ok(&app, "/rerank", body.clone()).await;
            assert_eq!(alone["results"][0]["relevance_score"], json!(score), "{name}: bit-identical");
        }
        let series = format!("ntl_prompt_tokens_total{{model=\"{name}\"}}");
        assert_eq!(metric(&app, &series).await as usize, 4 * tokens, "all requests are counted");
    }
}

#[tokio::test]
async fn predictions_are_the_labels_of_texts_and_pairs_in_the_order_of_their_scores() {
    let app = head("bert-relevance");
    for raw_scores in [false, true] {
        let body = json!({"inputs": [[QUERY], [QUERY, DOCUMENTS[0]]], "raw_scores": raw_scores});
        let each = ok(&app, "/predict", body).await;
        let one = ok(&app, "/predict", json!({"inputs": QUERY, "raw_scores": raw_scores})).await;
        let listed = ok(&app, "/predict", json!({"inputs": [QUERY], "raw_scores": raw_scores})).await;
        assert_eq!((&each[0], &one), (&one, &listed));
        let pair = json!({"inputs": [QUERY, DOCUMENTS[0]], "raw_scores": raw_scores});
        assert_eq!(each[1], ok(&app, "/predict", pair).await);
        let body = json!({"input": QUERY, "use_activation": !raw_scores});
        let classified = ok(&app, "/classify", body).await["data"][0].clone();
        for prediction in one.as_array().unwrap() {
            let place = usize::from(prediction["label"] == "relevant");
            assert_eq!(prediction["score"], classified["probs"][place], "{one}");
        }
        assert_eq!(one[0]["label"], classified["label"]);
        assert!(one[0]["score"].as_f64() >= one[1]["score"].as_f64(), "{one}");
    }
    let long = "12 ".repeat(400);
    let of = |more: Value| {
        let mut body = json!({"inputs": [QUERY, long]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let right = ok(&app, "/predict", of(json!({"truncate": true}))).await;
    let left = ok(&app, "/predict", of(json!({"truncate": true, "truncation_direction": "left"}))).await;
    assert_ne!(right, left);
    let refused = post(&app, "/predict", of(json!({}))).await;
    assert_eq!(refused.error()["message"], "`inputs`: prompt has 410 tokens, the model takes at most 128");
}

#[tokio::test]
async fn a_model_that_writes_has_the_probability_of_yes_as_decisions_have_it() {
    let app = tiny();
    let mut questions = Vec::new();
    for document in DOCUMENTS {
        let instructions = format!("Is this document relevant to the query?\n\n{document}");
        questions.push(json!({"type": "predicate", "instructions": instructions}));
    }
    let decided =
        ok(&app, "/v1/decisions", json!({"input": format!("Query: {QUERY}"), "questions": questions})).await;
    let mut want = Vec::new();
    for answer in decided["answers"].as_array().unwrap() {
        want.push(answer["probability"].as_f64().unwrap());
    }
    let response = ok(&app, "/rerank", json!({"query": QUERY, "documents": DOCUMENTS})).await;
    assert_eq!(scores(&response), want);
    assert!(want.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_ne()), "{want:?}");
    assert_eq!(response["usage"]["total_tokens"], decided["usage"]["input_tokens"]);
    // Objects, the best results only, and without documents.
    let objects = DOCUMENTS.map(|text| json!({ "text": text }));
    let best = json!({"query": QUERY, "documents": objects, "top_n": 2, "return_documents": false});
    let best = ok(&app, "/v1/rerank", best).await;
    let results = response["results"].as_array().unwrap();
    let mut without = results[..2].to_vec();
    for result in &mut without {
        result.as_object_mut().unwrap().remove("document");
    }
    assert_eq!(best["results"], json!(without));
    let all = json!({"query": QUERY, "documents": DOCUMENTS, "top_n": 99});
    assert_eq!(ok(&app, "/rerank", all).await["results"], response["results"]);
}

#[tokio::test]
async fn documents_are_shortened_to_their_maximum_of_tokens_and_returned_as_they_were_sent() {
    for app in [head("roberta-regression"), tiny()] {
        let long = "12 apples and 340 pears are 352.";
        let tokens = ok(&app, "/tokenize", json!({"prompt": long, "add_special_tokens": false})).await;
        let kept = json!({"tokens": &tokens["tokens"].as_array().unwrap()[..5]});
        let kept = ok(&app, "/detokenize", kept).await["prompt"].clone();
        let shortened = json!({"query": QUERY, "documents": [long], "max_tokens_per_doc": 5});
        let shortened = ok(&app, "/rerank", shortened).await["results"][0].clone();
        let whole = ok(&app, "/rerank", json!({"query": QUERY, "documents": [kept]})).await;
        assert_eq!(shortened["relevance_score"], whole["results"][0]["relevance_score"]);
        assert_eq!(shortened["document"]["text"], long);
        let unlimited = json!({"query": QUERY, "documents": [long], "max_tokens_per_doc": 99});
        let unlimited = ok(&app, "/rerank", unlimited).await["results"][0].clone();
        assert_ne!(unlimited["relevance_score"], shortened["relevance_score"]);
    }
}

#[tokio::test]
async fn requests_that_do_not_fit_name_their_field() {
    let (regression, classes) = (head("roberta-regression"), head("gpt2-classes"));
    let writes = four_or_five();
    let long = "7 ".repeat(600);
    for (app, body, param, message) in [
        (&writes, json!({"documents": ["a"]}), "query", "is missing"),
        (&writes, json!({"query": "", "documents": ["a"]}), "query", "must not be empty"),
        (&writes, json!({"query": "q"}), "documents", "is missing"),
        (&writes, json!({"query": "q", "documents": []}), "documents", "1 to 1024 documents, not 0"),
        (&writes, json!({"query": "q", "documents": vec!["a"; 1025]}), "documents", "not 1025"),
        (&writes, json!({"query": "q", "documents": ["a", "b", ""]}), "documents[2]", "must not be empty"),
        (&regression, json!({"query": "q", "documents": ["a", {"text": 5}]}), "documents[1]", "a string"),
        (&regression, json!({"query": "q", "documents": ["a", ["b"]]}), "documents[1]", "a string"),
        (&writes, json!({"query": "q", "documents": ["a", "b", long]}), "documents[2]", "more than the 512"),
        (&regression, json!({"query": "q", "documents": ["a", long]}), "documents[1]", "takes at most"),
        (&regression, json!({"query": "q", "documents": ["a"], "top_n": -1}), "top_n", "at least 0"),
        (
            &regression,
            json!({"query": "q", "documents": ["a"], "top_n": 9_223_372_036_854_775_808_u64}),
            "top_n",
            "at most 9223372036854775807",
        ),
        (&regression, json!({"query": "q", "documents": ["a"], "topn": 1}), "topn", "did you mean `top_n`?"),
        (&classes, json!({"query": "q", "documents": ["a"]}), "model", "has 3 labels"),
    ] {
        refused(app, "/rerank", body, param, message).await;
    }
    for (app, inputs, param, message) in [
        (&writes, json!("a"), "model", "no head that predicts labels"),
        (&classes, Value::Null, "inputs", "is missing"),
        (&classes, json!(""), "inputs", "empty text"),
        (&classes, json!([]), "inputs", "one or two texts, not 0"),
        (&classes, json!(["a", "b", "c"]), "inputs", "one or two texts, not 3"),
        (&classes, json!([["a"], []]), "inputs[1]", "one or two texts, not 0"),
        (&classes, json!([["a"], ["b", ""]]), "inputs[1]", "empty text"),
        (&classes, json!(vec![["a"]; 1025]), "inputs", "1 to 1024 texts or pairs, not 1025"),
        (&classes, json!([["a"], [long]]), "inputs[1]", "takes at most"),
        (&classes, json!([5]), "inputs", "a string"),
    ] {
        refused(app, "/predict", json!({"inputs": inputs}), param, message).await;
    }
    let side = json!({"inputs": "a", "truncation_direction": "left"});
    refused(&classes, "/predict", side, "truncation_direction", "is only allowed with `truncate`").await;
}

async fn refused(app: &Router, path: &str, body: Value, param: &str, message: &str) {
    let answer = post(app, path, body).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    let error = answer.error();
    assert_eq!(error["param"], param, "{error}");
    assert!(error["message"].as_str().unwrap().contains(message), "{error}");
}
