"""The page in a real browser: what it shows is what the records say, by mouse, by keyboard, and by its address."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from report_records import make_records, write_report

import hullo
from hullo.lab.paper import COLUMNS, ROWS
from hullo.lab.report import write_page

VIEWS = ("table", "curves", "paths", "training", "playground", "runs")
NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
RECORDS = [
    *make_records([COLUMNS[0]], ROWS, seeds=3, epochs=12),
    *make_records([COLUMNS[4]], ROWS[7:], seeds=2, epochs=20),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(tmp_path_factory.mktemp("report"), RECORDS)


def go_through_views(page: Any, query: str = "") -> Iterator[str]:
    for view in VIEWS:
        page.evaluate(f"location.hash = '#{view}{query}'")
        wait_until(page, f"state.view === '{view}'")
        yield view


def column(page: Any, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_text_contents()]


def set_range(page: Any, selector: str, value: float) -> None:
    page.locator(selector).evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


def settle(page: Any) -> None:
    """Wait until curves have glided to the epoch and the address names the view."""
    wait_until(page, "motion.shown === currentEpoch() && !motion.playing && location.hash === address({})")


def wait_until(page: Any, condition: str) -> None:
    """What Playwright's own function does, which the page's policy forbids it."""
    end = time.monotonic() + 10
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"still not so: {condition}"
        page.wait_for_timeout(20)


def test_every_view_opens(visit: Any, report: Path) -> None:
    page = visit(report)
    for view in go_through_views(page):
        assert page.locator("main > section:visible").count() == 1
        assert page.locator(f"#{view} h2").is_visible()
        assert page.locator("#views [aria-current=page]").get_attribute("data-view") == view


def drawn_curve(page: Any, run: str, layer: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """A path's points in the units of its axes, and what a pixel is worth on the second."""
    plot = page.locator("#curves .plot").nth(layer)
    path = plot.locator(f"path[data-run='{run}']:not(.faint)").get_attribute("d")
    points = torch.tensor(
        [[float(n) for n in pair.split()] for pair in re.split("[ML]", path)[1:]], dtype=torch.float64
    )
    (x0, x1), (y0, y1) = (map(float, plot.get_attribute(f"data-{axis}").split(",")) for axis in "xy")
    width, height = (float(plot.get_attribute(name)) for name in ("width", "height"))
    pixel = (y1 - y0) / height
    return x0 + points[:, 0] / width * (x1 - x0), y1 - points[:, 1] * pixel, pixel


def test_the_slider_moves_curves_to_what_the_library_computes(visit: Any, report: Path) -> None:
    page = visit(report, "#curves")
    record = next(r for r in RECORDS if r.spec.activation == "affine(identity,relu,tanh)")
    seen = []
    for epoch in (12, 0, 5):
        set_range(page, "#epoch", epoch)
        settle(page)
        for layer, coefficients in enumerate(record.coefficients[epoch]):
            x, y, pixel = drawn_curve(page, record.spec.id, layer)
            expected = hullo.combine(x, torch.tensor(coefficients, dtype=torch.float64), record.bases)
            torch.testing.assert_close(y, expected, rtol=0, atol=0.03 * pixel + 1e-4)
            assert len(x) > 100
        seen.append(y)
    assert (seen[0] - seen[1]).abs().max() > 0.05


def test_between_epochs_curves_glide(visit: Any, report: Path) -> None:
    page = visit(report, "#curves?epoch=12")
    page.evaluate(
        "window.steps = []; const before = update; update = () => { steps.push(motion.shown); before(); }; null"
    )
    page.locator("#epoch").focus()
    page.keyboard.press("Home")
    settle(page)
    steps = page.evaluate("steps")
    assert steps == sorted(steps, reverse=True)
    assert any(step % 1 for step in steps)
    page.evaluate("motion.shown = 4.25; updateCurves()")
    record = next(r for r in RECORDS if r.spec.activation == "affine(identity,relu,tanh)")
    before, after = (torch.tensor(record.coefficients[epoch][0], dtype=torch.float64) for epoch in (4, 5))
    x, y, pixel = drawn_curve(page, record.spec.id, layer=0)
    expected = hullo.combine(x, 0.75 * before + 0.25 * after, record.bases)
    torch.testing.assert_close(y, expected, rtol=0, atol=0.03 * pixel + 1e-4)


def test_with_reduced_motion_curves_jump(visit: Any, report: Path) -> None:
    page = visit(report, "#curves?epoch=12", reduced_motion="reduce")
    page.evaluate(
        "window.steps = []; const before = update; update = () => { before(); steps.push(motion.shown); }; null"
    )
    set_range(page, "#epoch", 3)
    assert page.evaluate("steps") == [3]


def test_playing_goes_through_the_epochs_and_stops_at_the_end(visit: Any, report: Path) -> None:
    page = visit(report, "#curves?epoch=10")
    said = "['play', 'epoch-text'].map((id) => document.getElementById(id).textContent)"
    page.evaluate(f"window.steps = []; const before = update; update = () => {{ before(); steps.push({said}); }}; null")
    page.locator("#play").focus()
    page.keyboard.press("Enter")
    wait_until(page, "steps.length > 0")
    settle(page)
    steps = page.evaluate("steps")
    assert steps[0][0] == "Pause"
    assert ["Pause", "11 of 12"] in steps
    assert steps[-1] == ["Play", "12 of 12"]


def test_a_deep_network_offers_stretches_of_its_layers(visit: Any, report: Path) -> None:
    page = visit(report, "#curves?column=resnet56/cifar10")
    assert column(page, "#curves figcaption")[::4] == ["activation 1", "activation 28", "activation 55"]
    page.select_option("#layers", label="19 to 27")
    assert column(page, "#curves figcaption") == [f"activation {n}" for n in range(19, 28)]


def test_sorting_sorts_and_says_so(visit: Any, report: Path) -> None:
    page = visit(report)
    head = page.locator("th:has(> button.sort)")
    assert column(page, "tbody th") == list(ROWS)
    for header, cell in ((1, "td:nth-child(2)"), (2, "td:nth-child(3)")):
        button = head.nth(header).locator("button")
        button.focus()
        for key, order in (("Enter", "descending"), ("Space", "ascending")):
            page.keyboard.press(key)
            wait_until(page, f"document.querySelector('th[aria-sort={order}] :focus') !== null")
            numbers = [float(text.split()[0]) for text in column(page, f"tbody {cell}")]
            assert numbers == sorted(numbers, reverse=order == "descending")
            assert len(set(numbers)) > 3
    head.nth(0).locator("button").click()
    assert column(page, "tbody th") == list(ROWS)
    assert head.evaluate_all("all => all.filter((th) => th.ariaSort !== 'none').length") == 1


def test_a_column_sorts_those_without_a_value_to_the_end(visit: Any, report: Path) -> None:
    page = visit(report)
    page.locator("button.sort").nth(3).click()
    assert column(page, "tbody td:nth-child(4)")[-7:] == [NOTHING] * 7


def test_the_table_shows_differences_from_relu(visit: Any, report: Path) -> None:
    page = visit(report, "#table?show=difference")
    cells = dict(zip(ROWS, column(page, "tbody td:nth-child(2)"), strict=True))
    assert cells["relu"] == NOTHING
    assert re.fullmatch(rf"[+{MINUS}]\d\.\d\d ± \d\.\d\d", cells["tanh"])
    assert column(page, "tbody td:nth-child(3)")[2] == "+1.27"


def test_bold_is_the_best_and_nothing_below_the_reference(visit: Any, tmp_path: Path) -> None:
    runs = make_records([COLUMNS[0]], ["relu", "affine(identity,relu)"], seeds=1, epochs=2)
    worse = [replace(record, accuracy=20.0, test_accuracy=[20.0, 20.0]) for record in runs[1:]]
    page = visit(write_report(tmp_path, [runs[0], *worse]))
    assert column(page, "tbody strong") == [f"{runs[0].accuracy:.2f}"]  # the paper's best is not among these rows
    page.select_option("#show", "difference")
    assert column(page, "tbody td:nth-child(3)") == ["", "+1.77"]
    assert column(page, "tbody strong") == []


def test_a_remark_on_several_columns_is_made_once(visit: Any, tmp_path: Path) -> None:
    alike = [replace(r, spec=replace(r.spec, batch=64)) for r in make_records(COLUMNS[:3], ["relu"], 1, 2)]
    assert column(visit(write_report(tmp_path / "all", alike)), ".remarks li") == ["Not as by default: batch=64."]
    other = [*alike[:2], *make_records(COLUMNS[2:3], ["relu"], 1, 2)]
    names = "lenet5/fashion-mnist, kerasnet/fashion-mnist"
    page = visit(write_report(tmp_path / "some", other))
    assert column(page, ".remarks li") == [f"{names}: Not as by default: batch=64."]


def test_a_cell_leads_to_its_runs_and_these_to_all_that_is_known(visit: Any, report: Path) -> None:
    page = visit(report)
    page.locator("tbody tr", has_text="convex(relu,tanh)").locator("td a").first.click()
    runs = [r for r in RECORDS if r.spec.activation == "convex(relu,tanh)" and r.spec.network == "lenet5"]
    page.locator("#runs summary").first.wait_for()
    assert page.locator("#runs summary").count() == len(runs)
    page.locator("#runs summary").nth(1).click()
    facts = page.locator("#runs details[open] dl").inner_text()
    for text in ("finished", "NVIDIA H200", "2.13.0", "0123456789ab", "4,321 s for 60 networks", runs[1].spec.id):
        assert text in facts
    page.go_back()
    page.locator("#table").wait_for()


def test_learning_curves_show_chosen_rows_and_seeds(visit: Any, report: Path) -> None:
    page = visit(report, "#training")
    assert page.locator("#training .plot path:not(.faint)").count() == len(ROWS)
    page.get_by_role("group", name="Activations").get_by_role("button", name="none").click()
    assert page.locator("#training .plot path").count() == 0
    page.get_by_role("checkbox", name="leaky_relu").check()
    assert page.locator("#training .plot path.faint").count() == 3
    page.get_by_role("group", name="Seeds").get_by_role("checkbox", name="1").uncheck()
    assert page.locator("#training .plot path.faint").count() == 2
    chosen = [
        r for r in RECORDS if (r.spec.activation, r.spec.network) == ("leaky_relu", "lenet5") and r.spec.seed != 1
    ]
    page.locator("#epoch").focus()
    page.keyboard.press("ArrowLeft")
    mean = sum(r.test_accuracy[10] for r in chosen) / 2
    assert float(column(page, "#training .readings td")[0]) == pytest.approx(mean, abs=0.006)


def test_paths_are_in_the_plane_for_three_bases_and_over_epochs_for_two(visit: Any, report: Path) -> None:
    page = visit(report, "#paths?row=convex(identity,relu,tanh)&row=affine(relu,tanh)&epoch=7")
    plane, over_epochs = page.locator("#paths figure").all()
    assert column(plane, "text.corner") == ["identity", "relu", "tanh"]
    assert plane.locator("circle").count() == over_epochs.locator("circle").count() == 3
    record = next(r for r in RECORDS if r.spec.activation == "convex(identity,relu,tanh)")
    corners = [tuple(map(float, pair.split(","))) for pair in plane.locator("polygon").get_attribute("points").split()]
    for layer, circle in zip(record.coefficients[7], plane.locator("circle").all(), strict=True):
        expected = [sum(c * corner[axis] for c, corner in zip(layer, corners, strict=True)) for axis in (0, 1)]
        assert [float(circle.get_attribute(name)) for name in ("cx", "cy")] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    "coefficients",
    [{"identity": 0.25, "relu": 0.75}, {"identity": -1.0, "tanh": 2.0}, {"unit_gelu": 0.4, "sin": 0.5, "selu": 0.3}],
    ids=str,
)
def test_the_playground_says_what_the_library_says(visit: Any, report: Path, coefficients: dict[str, float]) -> None:
    page = visit(report, "#playground?base=identity:1")
    for name, value in coefficients.items():
        if name != "identity":
            page.select_option("#add", name)
        page.get_by_label(f"coefficient of {name}, as a number").fill(str(value))
    if "identity" not in coefficients:
        page.get_by_role("button", name="remove identity").click()
    numbers, names = list(coefficients.values()), list(coefficients)
    said = page.locator("[data-fact=monotone]").inner_text()
    assert said.startswith("Monotone") == hullo.is_monotone(numbers, names)
    low, high = (f"{bound:.4g}".replace("-", MINUS) for bound in hullo.slope_bounds(numbers, names))
    assert f"from {low} to {high}" in page.locator("[data-fact=slopes]").inner_text()
    place = page.locator("[data-fact=place]").inner_text()
    total = sum(numbers)
    assert ("In the convex hull" in place) == (min(numbers) >= 0 and abs(total - 1) < 1e-5)
    assert ("In the affine hull" in place) == (min(numbers) < 0 and abs(total - 1) < 1e-5)


def test_the_playground_obeys_the_keyboard(visit: Any, report: Path) -> None:
    page = visit(report, "#playground?base=identity:0.5&base=relu:0.5")
    before = page.locator("[data-kind=value]").get_attribute("d")
    page.get_by_label("coefficient of relu", exact=True).focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.get_by_label("coefficient of relu, as a number").input_value() == "0.53"
    assert page.locator("[data-kind=value]").get_attribute("d") != before
    assert "not sum to one" in page.locator("[data-fact=place]").inner_text()
    page.get_by_role("button", name="shift to sum one").press("Enter")
    assert "In the convex hull" in page.locator("[data-fact=place]").inner_text()


def test_the_playgrounds_python_makes_the_same_function(visit: Any, report: Path) -> None:
    page = visit(report, "#playground?base=identity:-0.5&base=unit_silu:1.5")
    hull = eval(page.locator("#playground code").inner_text(), {"hullo": hullo})
    assert isinstance(hull, hullo.AffineHull)
    x = torch.linspace(-3, 3, 7)
    shown = page.evaluate("x => combine('value', [-0.5, 1.5], ['identity', 'unit_silu'], x)", x.tolist())
    torch.testing.assert_close(hull(x), torch.tensor(shown), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "fragment",
    [
        "#table?show=difference&sort=-paper+lenet5%2Ffashion-mnist",
        "#curves?column=resnet56%2Fcifar10&row=affine%28identity%2Crelu%29&seed=1&epoch=5&layers=10",
        "#paths?row=convex%28identity%2Crelu%2Ctanh%29&epoch=3",
        "#training?row=relu&seed=0&seed=2&epoch=4&metric=train_loss",
        "#playground?base=tanh%3A-0.5&base=asinh%3A1.5",
    ],
)
def test_an_address_reopens_its_view(visit: Any, report: Path, fragment: str) -> None:
    page = visit(report, fragment)
    settle(page)
    assert page.evaluate("location.hash") == fragment
    assert page.evaluate("address({})") == fragment


def test_what_a_person_chose_is_in_the_address(visit: Any, report: Path) -> None:
    page = visit(report)
    page.get_by_role("link", name="Curves", exact=True).click()
    page.select_option("#column", "resnet56/cifar10")
    page.get_by_role("checkbox", name="convex(identity,relu,tanh)").uncheck()
    page.get_by_role("group", name="Seeds").get_by_role("checkbox", name="1").check()
    page.select_option("#layers", "46")
    set_range(page, "#epoch", 8)
    settle(page)
    drawn = "[...document.querySelectorAll('#curves .plot path')].map((path) => path.getAttribute('d'))"
    again = visit(report, page.evaluate("location.hash"))
    settle(again)
    assert again.evaluate(drawn) == page.evaluate(drawn)
    assert len(page.evaluate(drawn)) == 9 * 2 * 4


def test_an_address_with_nonsense_shows_what_it_can(visit: Any, report: Path) -> None:
    for fragment in (
        "#nowhere",
        "#curves?column=x&row=y&seed=z&epoch=w&layers=v",
        "#playground?base=nope:1&base=relu:x",
    ):
        page = visit(report, fragment)
        assert page.locator("main > section:visible").count() == 1


def test_hostile_text_is_text(visit: Any, tmp_path: Path) -> None:
    record = make_records([COLUMNS[0]], ["affine(identity,tanh)"], seeds=1, epochs=2)[0]
    setting = replace(record.setting, device=HOSTILE, commit=HOSTILE)
    hostile = replace(record, ended=f"{HOSTILE} in epoch 1", setting=setting, bases=[HOSTILE, "tanh"])
    page = visit(write_report(tmp_path, [hostile]))
    dialogs: list[Any] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    for view in go_through_views(page):
        assert page.locator("img").count() == 0
        if view == "runs":
            page.locator("summary").click()
            assert HOSTILE in page.locator("summary").inner_text()
            assert page.locator("dd", has_text=HOSTILE).count() == 3
        if view == "curves":
            assert HOSTILE in page.locator("[data-part=remark]").inner_text()
    assert dialogs == []


def test_a_phone_needs_no_sideways_scrolling(visit: Any, report: Path) -> None:
    page = visit(report, width=375)
    for view in go_through_views(page, "?column=resnet56/cifar10"):
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, view
        if view == "table":
            assert page.evaluate("(box => box.scrollWidth - box.clientWidth)(document.querySelector('.scroll'))") <= 0


CONTRAST = """() => {
  const channels = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (text) => {
    const [r, g, b] = channels(text).map((c) => (c / 255 <= 0.03928 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const {backgroundColor} = getComputedStyle(at);
      if (channels(backgroundColor)[3] !== 0) return backgroundColor;
    }
  };
  const poor = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !element.getClientRects().length || element.closest("script, noscript, .skip")) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(element.namespaceURI.endsWith("svg") ? style.fill : style.color), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName} ${element.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(visit: Any, report: Path, scheme: str) -> None:
    page = visit(report, color_scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    for view in go_through_views(page):
        assert page.evaluate(CONTRAST) == [], view


def test_the_theme_can_be_switched(visit: Any, report: Path) -> None:
    page = visit(report, color_scheme="dark")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.locator("#theme").click()
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.locator("#theme").click()
    assert page.evaluate(ground) == dark


UNNAMED = """() => [...document.querySelectorAll("input, select, button, [role=img], [role=group]")]
  .filter((one) => !(one.labels?.length || one.ariaLabel || one.textContent.trim())).map((one) => one.outerHTML)"""


def test_every_control_and_chart_has_a_name_and_focus_shows(visit: Any, report: Path) -> None:
    page = visit(report)
    for view in go_through_views(page):
        assert page.evaluate(UNNAMED) == [], view
        page.locator("#theme").focus()
        for _ in range(9):  # past the views, into what this one has
            page.keyboard.press("Tab")
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_runs_under_way_are_noted_and_without_a_finished_one_there_is_the_playground(
    visit: Any, tmp_path: Path
) -> None:
    document = {"hullo": "0", "scale": 1, "waiting": [("lenet5/cifar10", 7)], "settings": [], "rows": [], "columns": []}
    write_page(document, tmp_path / "page.html")
    page = visit(tmp_path / "page.html")
    assert "lenet5/cifar10: 7 runs under way" in page.locator(".note").inner_text()
    assert column(page, "#views a") == ["Playground"]
    assert page.locator("#playground .plot").count() == 2


def test_a_run_that_diverged_is_drawn_as_far_as_it_went(visit: Any, tmp_path: Path) -> None:
    record = make_records([COLUMNS[0]], ["affine(identity,relu,tanh)"], seeds=1, epochs=4)[0]
    lost: list[list[float | None]] = [[None] * 3] * 3
    broken = replace(
        record,
        ended="diverged in epoch 3",
        coefficients=[*record.coefficients[:3], lost, lost],
        train_loss=[1.0, 2.0, None, None],
        test_loss=[1.0, 1e30, None, None],
    )
    page = visit(write_report(tmp_path, [broken]))
    assert "1 diverged" in page.locator("tbody td").first.inner_text()
    for epoch, drawn in ((2, True), (3, False)):
        for _ in go_through_views(page, f"?epoch={epoch}&metric=test_loss"):
            settle(page)
            assert "NaN" not in page.locator("main").inner_html()
        page.evaluate(f"location.hash = '#curves?epoch={epoch}'")
        settle(page)
        assert page.locator("#curves .plot path[d^=M]").count() == (3 if drawn else 0)
        assert ("diverged in epoch 3" in page.locator("#curves [data-part=remark]").inner_text()) == (not drawn)
        page.evaluate(f"location.hash = '#paths?epoch={epoch}'")
        settle(page)
        assert page.locator("#paths circle").count() == (3 if drawn else 0)
        assert ("diverged in epoch 3" in page.locator("#paths [data-part=remark]").inner_text()) == (not drawn)


def test_a_run_that_diverged_ends_with_a_cross_and_is_in_no_mean(visit: Any, tmp_path: Path) -> None:
    runs = make_records([COLUMNS[0]], ["relu", "tanh"], seeds=2, epochs=4)
    broken = [replace(runs[0], ended="diverged in epoch 3"), replace(runs[3], ended="diverged in epoch 2")]
    page = visit(write_report(tmp_path, [broken[0], runs[1], broken[1]]), "#training?epoch=4")
    settle(page)
    crosses = page.locator("#training .lost").evaluate_all("all => all.map((one) => one.dataset.run)")
    assert crosses == [record.spec.id for record in broken]
    read = dict(zip(column(page, "#training .readings th"), column(page, "#training .readings td"), strict=True))
    assert read == {"relu": f"{runs[1].test_accuracy[3]:.2f}", "tanh": "diverged"}
    mean = page.locator("#training [data-row=relu]").get_attribute("d")
    assert mean == page.locator("#training .faint").nth(1).get_attribute("d")
