"""plot: SVG of cost against size, written by hand, so that a cliff shows. Both axes are logarithmic: a cost that grows with the
size is a slope, a constant one is flat."""
import math
from xml.sax.saxutils import escape

# {name of a plot without its store: (title, x, y)}.
PLOTS = {
    "steady-cpu": ("One consumer: processor time of server and relay", "events a second", "% of a core"),
    "steady-latency": ("One consumer: emit start to handled", "events a second", "ms"),
    "steady-asked": ("One consumer: what the server is asked for", "events a second", "for an event"),
    "many-cpu": ("Many consumers: processor time of server and relay", "consumers", "% of a core"),
    "many-emit": ("Many consumers: emit, median", "consumers", "ms"),
    "many-memory": ("Many consumers: memory of the relay", "consumers", "MiB"),
    "lanes-fast": ("Lanes: a handler that only counts", "lanes", "events a second"),
    "lanes-slow": ("Lanes: a handler that takes 5 ms", "lanes", "events a second"),
    "failing": ("Failures: events handled", "% of the events that fail", "events a second"),
    "beside": ("Emit beside a relay that sleeps, of a bare INSERT", "producers", "of bare"),
}
STORES = {"postgres": "PostgreSQL", "sqlite": "SQLite", "mariadb": "MariaDB"}
COLOURS = ("#0b62a4", "#d9480f", "#2b8a3e", "#862e9c", "#c2255c", "#5c940d", "#495057", "#e8a700")
WIDTH, HEIGHT = 820, 380
LEFT, RIGHT, TOP, BOTTOM = 92, 258, 46, 58  # around the field


def spread(values):
    """The powers of ten around the values, at least a readable range apart."""
    low = math.floor(math.log10(min(values)) + 1e-9)
    high = math.ceil(math.log10(max(values)) - 1e-9)
    return low, max(high, low + 1)


def number(value):
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


class Field:
    """The position of a value in the picture."""

    def __init__(self, points):
        self.xs = sorted({p["x"] for p in points})
        self.x0, self.x1 = math.log10(self.xs[0]), math.log10(self.xs[-1])
        self.y0, self.y1 = spread([p["y"] for p in points])

    def x(self, value):
        share = (math.log10(value) - self.x0) / (self.x1 - self.x0) if self.x1 > self.x0 else 0.5
        return LEFT + 12 + share * (WIDTH - LEFT - RIGHT - 24)

    def y(self, value):
        share = (math.log10(value) - self.y0) / (self.y1 - self.y0)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def text(x, y, words, anchor="start", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


def axes(field, x_label, y_label):
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for power in range(field.y0, field.y1 + 1):
        y = field.y(10.0 ** power)
        yield f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>'
        yield text(LEFT - 8, y + 4, number(10.0 ** power), "end")
    for value in field.xs:
        x = field.x(value)
        yield f'<path d="M{x:.1f} {bottom}v5" stroke="#555"/>'
        yield text(x, bottom + 20, number(value), "middle")
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#555"/>'
    yield text((LEFT + right) / 2, HEIGHT - 16, x_label, "middle")
    yield text(18, (TOP + bottom) / 2, y_label, "middle", f'transform="rotate(-90 18 {(TOP + bottom) / 2})"')


def curves(field, points):
    """A line with dots for each series, and its name beside it, in the order in which the lines end."""
    points = sorted(points, key=lambda p: p["x"])
    last = {p["series"]: p["y"] for p in points}
    names = sorted(last, key=last.get, reverse=True)
    for i, name in enumerate(names):
        colour, dash = COLOURS[i % len(COLOURS)], ' stroke-dasharray="5 4"' if i >= len(COLOURS) else ""
        dots = [(field.x(p["x"]), field.y(p["y"])) for p in points if p["series"] == name]
        yield (f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in dots)}" fill="none" stroke="{colour}" '
               f'stroke-width="2"{dash}/>')
        for x, y in dots: yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
        y = TOP + 10 + 20 * i
        yield f'<path d="M{WIDTH - RIGHT + 16} {y}h22" stroke="{colour}" stroke-width="3"{dash}/>'
        yield text(WIDTH - RIGHT + 46, y + 4, name)


def svg(name, points, when):
    store, _, kind = name.partition("-")
    title, x_label, y_label = PLOTS[kind]
    points = [p for p in points if p["x"] > 0 and p["y"] > 0]
    field = Field(points)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
             text(LEFT, 24, f"{title}, {STORES[store]}", more='font-size="15"'),
             text(WIDTH - 10, HEIGHT - 10, when, "end", 'fill="#777" font-size="10"'),
             *axes(field, x_label, y_label), *curves(field, points), "</svg>"]
    return "\n".join(parts) + "\n"
