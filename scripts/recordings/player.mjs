// Plays an asciicast with asciinema-player's own core and prints what that shows: `node player.mjs PACKAGE FILE`.
//
// The player is made for browsers; its core needs none. The core's file has a hash in its name, and short names inside.
import { readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, file] = process.argv.slice(2);
const dist = resolve(folder, 'dist');
const name = readdirSync(dist).find((name) => /^core-.*\.js$/.test(name));
const module = await import(pathToFileURL(join(dist, name)));
const Core = Object.values(module).find((value) => value?.prototype?.getDuration && value?.prototype?.seek);

const quiet = () => {};
const logger = { debug: quiet, info: quiet, warn: quiet, error: (...words) => console.error(...words) };
const core = new Core({ data: readFileSync(file, 'utf8') }, { logger, speed: 1000, preload: true, loop: false });
let shown = '';
const markers = [];
const ended = new Promise((done, failed) => {
  core.addEventListener('output', (event) => { shown += [event?.data ?? event].flat().join(''); });
  core.addEventListener('marker', (event) => markers.push(event?.label ?? event));
  core.addEventListener('ended', done);
  core.addEventListener('error', (error) => failed(new Error(`the player: ${JSON.stringify(error)}`)));
});
core.terminalReady();
await core.init();
core.play();
await ended;
process.stdout.write(JSON.stringify({ shown, markers, duration: await core.getDuration() }));
process.exit(0);
