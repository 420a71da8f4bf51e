import io

from rich.console import Console

from hullo.lab.progress import Progress


def walk(console, **options):
    with Progress(console, **options) as steps:
        for done, name in enumerate(["first", "second"]):
            steps.start_step(name, done, 2)
            steps.update(0.5)
        steps.note("[one] thing")


def test_terminal_shows_a_bar_and_notes(capsys):
    screen = io.StringIO()
    walk(Console(file=screen, force_terminal=True, width=80))
    assert "75%" in screen.getvalue()
    assert "note: [one] thing" in screen.getvalue()
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_steps_are_lines_on_stderr(capsys):
    walk(Console())
    assert capsys.readouterr() == ("", "[1/2] first\n[2/2] second\nnote: [one] thing\n")


def test_quiet_prints_only_notes(capsys):
    walk(Console(), quiet=True)
    assert capsys.readouterr() == ("", "note: [one] thing\n")


def test_concurrent_steps_are_logged_in_lines(capsys):
    screen = io.StringIO()
    for console in (Console(file=screen, force_terminal=True, width=80), Console()):
        with Progress(console) as steps:
            steps.log("[one] has ended", 1, 4)
    assert "[one] has ended\n" in screen.getvalue()
    assert "1 of 4" in screen.getvalue()
    assert "25%" in screen.getvalue()
    assert capsys.readouterr() == ("", "[one] has ended\n")
    with Progress(Console(), quiet=True) as steps:
        steps.log("[one] has ended", 1, 4)
    assert capsys.readouterr() == ("", "")
