// Where the nodes of a graph stand: one column for each level, in an order with few crossings; one row in a narrow window.

export const WIDTH = 208;
export const HEIGHT = 104;
const GAP_X = 100;
const GAP_Y = 26;
const GAP_ROWS = 46;
const GAP_BRANCHES = 14;

export function layout(nodes, inRows) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const level = new Map();
  const depth = (node, on) => {
    if (level.has(node.id)) return level.get(node.id);
    if (on.has(node.id)) return 0;
    on.add(node.id);
    const above = node.inputs.map((input) => byId.get(input.id)).filter(Boolean);
    const found = above.length ? 1 + Math.max(...above.map((one) => depth(one, on))) : 0;
    on.delete(node.id);
    level.set(node.id, found);
    return found;
  };
  nodes.forEach((node) => depth(node, new Set()));
  const columns = [];
  nodes.forEach((node) => (columns[level.get(node.id)] ||= []).push(node));
  const row = new Map();
  columns.forEach((column) => column.forEach((node, at) => row.set(node.id, at)));
  for (const column of columns) {
    const middle = (node) => {
      const above = node.inputs.map((input) => row.get(input.id)).filter((at) => at !== undefined);
      return above.length ? above.reduce((a, b) => a + b, 0) / above.length : row.get(node.id);
    };
    const wanted = new Map(column.map((node) => [node.id, middle(node)]));
    column.sort((a, b) => wanted.get(a.id) - wanted.get(b.id));
    column.forEach((node, at) => row.set(node.id, at));
  }
  const most = Math.max(1, ...columns.map((column) => column.length));
  const [along, across] = inRows ? [HEIGHT + GAP_ROWS, WIDTH + GAP_BRANCHES] : [WIDTH + GAP_X, HEIGHT + GAP_Y];
  const places = new Map();
  columns.forEach((column, level) => {
    column.forEach((node, at) => {
      const [far, side] = [level * along, ((most - column.length) / 2 + at) * across];
      places.set(node.id, inRows ? { x: side, y: far } : { x: far, y: side });
    });
  });
  const [length, breadth] = [columns.length * along - (inRows ? GAP_ROWS : GAP_X), most * across - (inRows ? GAP_BRANCHES : GAP_Y)];
  return inRows ? { places, width: breadth, height: length } : { places, width: length, height: breadth };
}
