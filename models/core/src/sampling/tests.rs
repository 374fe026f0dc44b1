//! Chosen tokens, compared with known distributions.

use super::*;

fn draws(sampling: SamplingParams, path: u64, logits: &[f32]) -> Vec<u32> {
    (0..2000).map(|index| Sampler::new(sampling, path * 10_000 + index).choose(logits).unwrap()).collect()
}

fn kept(sampling: SamplingParams, logits: &[f32]) -> Vec<u32> {
    let mut drawn = draws(sampling, 0, logits);
    drawn.sort_unstable();
    drawn.dedup();
    drawn
}

fn ln(probabilities: &[f64]) -> Vec<f32> {
    probabilities.iter().map(|probability| probability.ln() as f32).collect()
}

#[test]
fn greedy_decoding_chooses_the_first_of_equal_maxima_and_never_a_nan() {
    let mut greedy = Sampler::new(SamplingParams::GREEDY, 0);
    assert_eq!(greedy.choose(&[1.0, 3.0, 3.0, f32::NAN]), Some(1));
    assert_eq!(greedy.choose(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), None);
    assert_eq!(greedy.choose(&[]), None);
}

#[test]
fn frequencies_follow_the_softmax_at_the_given_temperature() {
    let logits = [0.0, 2.0_f32.ln(), f32::NEG_INFINITY];
    for (temperature, share) in [(1.0, 2.0 / 3.0), (0.5, 4.0 / 5.0)] {
        let drawn = draws(SamplingParams { temperature, seed: 7, ..SamplingParams::PLAIN }, 0, &logits);
        let ones = drawn.iter().filter(|&&id| id == 1).count() as f64 / drawn.len() as f64;
        assert!((ones - share).abs() < 0.04, "temperature {temperature}: {ones} instead of {share}");
        assert!(!drawn.contains(&2), "a token of no probability was drawn");
    }
}

#[test]
fn each_cut_off_keeps_the_tokens_of_its_definition() {
    let logits = ln(&[0.1, 0.6, 0.3]);
    let plain = SamplingParams { seed: 1, ..SamplingParams::PLAIN };
    for (sampling, want) in [
        (SamplingParams { top_p: 0.5, ..plain }, vec![1]),
        (SamplingParams { top_p: 0.7, ..plain }, vec![1, 2]),
        (SamplingParams { top_p: 0.95, ..plain }, vec![0, 1, 2]),
        (plain, vec![0, 1, 2]),
        (SamplingParams { top_k: 1, ..plain }, vec![1]),
        (SamplingParams { top_k: 2, ..plain }, vec![1, 2]),
        (SamplingParams { top_k: 9, ..plain }, vec![0, 1, 2]),
        (SamplingParams { min_p: 0.4, ..plain }, vec![1, 2]),
        (SamplingParams { min_p: 1.0, ..plain }, vec![1]),
        // 0.6 of the 0.9 that `top_k` leaves is two thirds.
        (SamplingParams { top_k: 2, top_p: 0.66, ..plain }, vec![1]),
        // At temperature 2 the shares are 0.19, 0.47, 0.33: `min_p` looks at these.
        (SamplingParams { temperature: 2.0, min_p: 0.39, ..plain }, vec![0, 1, 2]),
    ] {
        assert_eq!(kept(sampling, &logits), want, "{sampling:?}");
    }
}

#[test]
fn a_wide_nucleus_is_the_same_as_sorting_everything() {
    let logits: Vec<f32> = (0..3000).map(|id| ((id * 7919) % 3001) as f32 * 1e-3).collect();
    for top_p in [0.01, 0.1, 0.5, 0.9, 0.999] {
        let mut best: Vec<usize> = (0..logits.len()).collect();
        best.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let weight = |&id: &usize| f64::from(logits[id] - logits[best[0]]).exp();
        let wanted = top_p * best.iter().map(weight).sum::<f64>();
        let mut mass = 0.0;
        let last = best.iter().position(|id| {
            mass += weight(id);
            mass >= wanted
        });
        let sampling = SamplingParams { top_p, ..SamplingParams::PLAIN };
        let at_the_end = draw::draw(&logits, logits[best[0]], &sampling, 1.0 - 1e-12);
        assert_eq!(at_the_end, last.map(|rank| best[rank]), "top_p {top_p}");
    }
}

#[test]
fn penalties_lower_what_was_seen_by_their_formulas() {
    let seen = |sampling: SamplingParams| {
        let mut seen = Seen::of(&sampling).unwrap();
        seen.prompt(&[0, 1]);
        for id in [1, 2, 2] {
            seen.generated(id);
        }
        seen.penalised(&[2.0, -2.0, 2.0, 2.0], &sampling)
    };
    for (sampling, want) in [
        (SamplingParams { presence_penalty: 0.5, ..SamplingParams::PLAIN }, [2.0, -2.5, 1.5, 2.0]),
        (SamplingParams { frequency_penalty: 0.5, ..SamplingParams::PLAIN }, [2.0, -2.5, 1.0, 2.0]),
        (SamplingParams { frequency_penalty: -1.0, ..SamplingParams::PLAIN }, [2.0, -1.0, 4.0, 2.0]),
        (SamplingParams { repetition_penalty: 2.0, ..SamplingParams::PLAIN }, [1.0, -4.0, 1.0, 2.0]),
        (
            SamplingParams { repetition_penalty: 2.0, presence_penalty: 1.0, ..SamplingParams::PLAIN },
            [1.0, -5.0, 0.0, 2.0],
        ),
    ] {
        let got = seen(sampling);
        let close = got.iter().zip(want).all(|(got, want): (&f32, f32)| (got - want).abs() < 1e-6);
        assert!(close, "{sampling:?}: {got:?} instead of {want:?}");
    }
    assert!(Seen::of(&SamplingParams { presence_penalty: -0.0, ..SamplingParams::GREEDY }).is_none());
}

#[test]
fn greedy_text_under_a_penalty_moves_on() {
    let mut sampler = Sampler::new(SamplingParams { presence_penalty: 1.0, ..SamplingParams::GREEDY }, 0);
    let chosen: Vec<_> = (0..3).filter_map(|_| sampler.choose(&[1.0, 1.5, 1.2])).collect();
    assert_eq!(chosen, [1, 2, 0]);
    let behind = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::GREEDY };
    assert_eq!(Sampler::new(behind, 0).after_prompt(&[1]).choose(&[1.0, 1.5]), Some(0));
}

#[test]
fn the_same_seed_repeats_itself_and_paths_differ() {
    let sampling = SamplingParams { seed: 42, ..SamplingParams::PLAIN };
    let logits = [0.0; 50];
    let text = |sampling, path| {
        let mut sampler = Sampler::new(sampling, path);
        (0..100).filter_map(|_| sampler.choose(&logits)).collect::<Vec<_>>()
    };
    assert_eq!(text(sampling, 0), text(sampling, 0));
    assert_ne!(text(sampling, 0), text(sampling, 1));
    assert_ne!(text(sampling, 0), text(SamplingParams { seed: 43, ..sampling }, 0));
}

#[test]
fn the_first_of_the_largest_values_is_found_at_any_index() {
    let base: Vec<f32> = (0..1000).map(|index| (index as f32 * 0.7).sin()).collect();
    for place in [0, 1, 15, 16, 255, 256, 257, 511, 767, 998, 999] {
        let mut values = base.clone();
        values[place] = 2.0;
        assert_eq!(argmax(&values), place);
        values[999] = 2.0;
        assert_eq!(argmax(&values), place);
        values[0] = f32::NAN;
        assert_eq!(argmax(&values), if place == 0 { 999 } else { place });
    }
    let [nan, low] = [f32::NAN, f32::NEG_INFINITY];
    assert_eq!(
        [argmax(&[]), argmax(&[nan, nan]), argmax(&[nan, low]), argmax(&[nan, low, -5.0])],
        [0, 0, 0, 2]
    );
}
